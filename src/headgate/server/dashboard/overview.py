"""The overview."""

from collections.abc import Sequence

from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import tile, tiles
from headgate.server.dashboard.sources import Sources


def pages(sources: Sources) -> Sequence[Page]:
    return [Page(path="/", entry="Overview", show=Overview(sources).show)]


class Overview:
    """`/`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def show(self, visit: Visit) -> Shown:
        status = self._sources.gateway.status()
        numbers = tiles(
            tile("Waiting", status.rt_queue + status.be_queue, f"{status.rt_queue} interactive"),
            tile("Slots in use", status.total_slots - status.available_slots, f"of {status.total_slots}"),
        )
        return Shown("Overview", [Section("numbers", numbers)])
