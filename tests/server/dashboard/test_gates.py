"""The table of gates: what a stranger reads of an upstream that is limited, busy, closed or idle."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from server.dashboard.dashboard_stage import a_view, read_html

from headgate.core.hold import Condition
from headgate.server.dashboard.models import gates
from headgate.server.dashboard.moments import Moments

LIMIT: Final = "limited to 19.4 starts/s: refusals began above it"
HEADS: Final = ("Upstream", "State", "Slots in use", "Waiting", "Refused or failed", "Retry budget")


def _row(**status: Any) -> list[str]:
    """The cells of one upstream."""
    page = str(gates([a_view(**status)], Moments(datetime(2026, 1, 1, tzinfo=UTC))))
    assert read_html(page).text.startswith("".join(HEADS))
    return [read_html(cell).text for cell in page.partition("<tbody>")[2].split("</td>")[:-1]]


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({}, "idle"),
        ({"available_slots": 1}, "working"),
        ({"available_slots": 1, "limit": LIMIT}, f"working{LIMIT}"),
        ({"limit": LIMIT, "rt_queue": 1}, f"at its limit1 call waits; it is {LIMIT}"),
        ({"stopped": True, "accepting": False, "closed": True, "limit": LIMIT}, "paused by an operator"),
        (
            {"closed": True, "probe_in_s": 3.0},
            "closed: throttlingit refused too many calls in a row; next probe in 3 s",
        ),
        (
            {"closed": True, "condition": Condition.OPEN, "probe_in_s": 3.0},
            "closed: failingtoo many calls in a row failed; next probe in 3 s",
        ),
    ],
)
def test_the_state_stands_beside_what_was_learned(status: dict[str, Any], state: str) -> None:
    assert _row(**status)[1] == state


@pytest.mark.parametrize(
    ("interactive", "batch", "told"),
    [(0, 0, "0"), (12, 0, "12"), (12, 3, "12, 3 batch"), (0, 3, "0, 3 batch")],
)
def test_batch_is_named_where_it_waits(interactive: int, batch: int, told: str) -> None:
    assert _row(rt_queue=interactive, be_queue=batch)[3] == told


def test_the_share_of_refusals_is_a_percentage() -> None:
    assert _row(refused_share=0.123)[4] == "12%"
    assert _row()[4] == "0%"
