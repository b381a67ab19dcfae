"""The pages there are. A new one is a file with a `pages(sources)` and one line here."""

from collections.abc import Callable, Sequence
from typing import Final

from headgate.server.dashboard import alerts, batches, dead_letters, jobs, keys, models, overview, requests
from headgate.server.dashboard.page import Page
from headgate.server.dashboard.sources import Sources

_FILES: Final[Sequence[Callable[[Sources], Sequence[Page]]]] = (
    overview.pages,
    models.pages,
    requests.pages,
    alerts.pages,
    jobs.pages,
    dead_letters.pages,
    batches.pages,
    keys.pages,
)


def all_pages(sources: Sources) -> list[Page]:
    return [page for pages in _FILES for page in pages(sources)]
