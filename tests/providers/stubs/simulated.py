"""The simulated provider in the contract's parts. There is no upstream: what it counts itself stands in for one."""

import random
from collections.abc import Mapping
from typing import Any, Final, Self

from contracts.provider_stage import QUESTION, RETRY_AFTER_S, SAID, TIMEOUTS, WORDS, Part, Stub, Troupe

from headgate.core.ports.provider import Provider
from headgate.machine.clock import SystemClock
from headgate.providers.simulated import SimulatedOptions, SimulatedProvider
from headgate.transport import Transport

PARTS: Final[Mapping[Part, Mapping[str, Any]]] = {
    Part.ANSWER: {},
    Part.BLANK: {"outcome": "blank"},
    Part.STREAM: {"chunks": len(WORDS)},
    Part.THROTTLED: {"outcome": "throttled", "retry_after_s": RETRY_AFTER_S},
    Part.OVERLOADED: {"outcome": "transient"},
    Part.UNAUTHORISED: {"outcome": "misconfigured"},
    Part.REJECTED: {"outcome": "rejected"},
    Part.CUT_STREAM: {"outcome": "cut", "cut_after_chunks": 1},
    Part.SILENT: {"outcome": "stall", "cut_after_chunks": 0},
    Part.STALLING_STREAM: {"outcome": "stall", "cut_after_chunks": 1},
}


class _Nobody:
    """The place of an upstream."""

    def __init__(self, part: Part) -> None:
        self.provider = SimulatedProvider(
            SimulatedOptions(latency_s=0, answers={QUESTION: SAID}, **PARTS[part]),
            model="simulated",
            clock=SystemClock(),
            chance=random.Random(7).random,
            connect_timeout_s=TIMEOUTS.connect_s,
        )

    @property
    def calls(self) -> int:
        return self.provider.calls

    @property
    def hang_ups(self) -> int:
        return self.provider.cancelled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *args: object) -> None:
        pass


def _make_provider(stub: Stub, transport: Transport) -> Provider:
    assert isinstance(stub, _Nobody)
    return stub.provider


TROUPE: Final = Troupe(
    make_stub=_Nobody, make_provider=_make_provider, cannot=frozenset(set(Part) - PARTS.keys())
)
