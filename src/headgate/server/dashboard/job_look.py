"""How many jobs there are, for pages that are made twice a second. Counting touches every job: it is done beside, now and then."""

from collections.abc import Mapping
from functools import partial
from typing import Final

from headgate.core.ports.clock import Clock
from headgate.observe.look import Look
from headgate.runner.jobs import Jobs

LOOK_EVERY_S: Final = 3.0
LONGEST_WAIT_S: Final = 0.5


class JobLook:
    """The last counts by state, of one tenant or, with None, of everybody."""

    def __init__(self, jobs: Jobs, clock: Clock) -> None:
        self._jobs = jobs
        self._clock = clock
        self._looks: dict[str | None, Look[Mapping[str, int]]] = {}

    async def counts(self, tenant: str | None) -> Mapping[str, int] | None:
        """None when the database does not tell."""
        look = self._looks.get(tenant)
        if look is None:
            ask = partial(self._jobs.count, tenant=tenant)
            look = self._looks[tenant] = Look(ask, self._clock.now, LOOK_EVERY_S)
        counts = await look.first(LONGEST_WAIT_S)
        # That the database does not answer stands above everything else on the page.
        return None if look.failed else counts
