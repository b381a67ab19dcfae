"""How a test closes an upstream: by more refusals in a row than chance explains."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pytest
from core.intake_stage import RUN
from stage import USER, Stage

from headgate.calls.upstream import Upstream
from headgate.core.errors import HeadgateError
from headgate.core.gate_rules import Door
from headgate.core.retry import RetryPolicy

__all__ = ["ONCE", "RUN", "close", "only", "upstream_of"]
ONCE: Final = RetryPolicy(max_attempts=1, count_throttles=True)


def upstream_of(stage: Stage, which: int = 0) -> Upstream:
    return stage.gateway.routes.find("m").upstreams[which]


@contextmanager
def only(stage: Stage, which: int) -> Iterator[Upstream]:
    """All new calls go to this one meanwhile."""
    chosen = upstream_of(stage, which)
    others = [one.gate.admission for one in stage.gateway.routes.find("m").upstreams if one is not chosen]
    for admission in others:
        admission.shut = Door.CLOSED
    yield chosen
    for admission in others:
        admission.shut = None


async def close(stage: Stage, which: int = 0) -> float:
    """Make calls that are refused, one after the other, until it is closed; returns when it may be probed."""
    with only(stage, which) as upstream:
        while not upstream.closed:
            with pytest.raises(HeadgateError):
                await stage.gateway.complete(model="m", messages=USER, retry=ONCE, deadline_s=0.2)
    return stage.now + (upstream.probed_in_s() or math.nan)
