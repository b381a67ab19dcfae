"""What the doctor says of the upstreams of a running gateway: a state, what was learned, and what to do."""

from typing import Any

import pytest

from headgate.calls.status import UpstreamStatus
from headgate.core.hold import Condition
from headgate.doctor.finding import Finding, State
from headgate.doctor.running import judge_gates

LIMIT = "limited to 19.4 starts/s: refusals began above it"


def _gate(**status: Any) -> UpstreamStatus:
    told: dict[str, Any] = {
        "model": "summary",
        "upstream": "openai/gpt-5",
        "condition": Condition.OK,
        "pause_s": 0.0,
        "stopped": False,
        "rt_queue": 0,
        "be_queue": 0,
        "total_slots": 64,
        "available_slots": 60,
        "accepting": True,
        "max_queue_depth": 1000,
        **status,
    }
    return UpstreamStatus(**told)


def _judged(**status: Any) -> Finding:
    (finding,) = judge_gates([_gate(**status)])
    return finding


@pytest.mark.parametrize(
    ("status", "state", "found", "advice"),
    [
        ({}, State.OK, "is open; no limit learned", ""),
        ({"limit": LIMIT, "rt_queue": 4}, State.OK, f"is open; 4 calls wait; {LIMIT}", ""),
        ({"limit": LIMIT, "rt_queue": 4, "be_queue": 1}, State.WARN, "is open; 5 calls wait", "higher quota"),
        ({"rt_queue": 1}, State.OK, "is open; 1 call waits; no limit learned", ""),
        (
            {"refused_share": 0.123},
            State.OK,
            "is open; no limit learned; 12% of its last calls were refused or failed",
            "",
        ),
        ({"refused_share": 0.004}, State.OK, "is open; no limit learned", ""),
        (
            {"closed": True, "probe_in_s": 12.4, "rt_queue": 14},
            State.WARN,
            "is closed: throttling; next probe in 12 s; 14 calls wait; no limit learned",
            "probed by itself",
        ),
        (
            {"closed": True, "condition": Condition.OPEN, "probe_in_s": 0.2},
            State.FAIL,
            "is closed: failing; the next call is the probe",
            "status page",
        ),
        (
            {"condition": Condition.HELD, "probe_in_s": 30.0, "accepting": False},
            State.FAIL,
            "is held: misconfigured; next probe in 30 s",
            "check its key",
        ),
        (
            {"stopped": True, "accepting": False, "condition": Condition.HELD, "probe_in_s": 30.0},
            State.WARN,
            "is paused by an operator; no limit learned",
            "headgate models resume summary",
        ),
        ({"accepting": False, "rt_queue": 1000}, State.WARN, "1000 calls wait", "more slots or depth"),
    ],
)
def test_each_state_has_its_words_and_its_advice(
    status: dict[str, Any], state: State, found: str, advice: str
) -> None:
    finding = _judged(**status)
    assert finding.state is state
    assert finding.found.startswith("openai/gpt-5 is ")
    assert found in finding.found
    assert advice in finding.advice
    assert bool(finding.advice) is bool(advice)


def test_the_upstreams_of_one_model_are_numbered_as_they_are_where_they_are_asked() -> None:
    gates = [_gate(), _gate(model="chat"), _gate(upstream="ollama/gemma3")]
    assert [finding.check for finding in judge_gates(gates)] == [
        "running: summary 1.",
        "running: chat",
        "running: summary 2.",
    ]


def test_a_gateway_without_models_has_nothing_to_show() -> None:
    assert list(judge_gates([])) == []
