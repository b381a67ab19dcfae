"""What a running gateway has learned of each upstream, as its `/queue/status` tells."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from headgate.calls.status import State, UpstreamStatus
from headgate.doctor.finding import Finding, fail, ok, warn

MOSTLY: Final = 0.5
KEY_VARIABLE: Final = "HEADGATE_API_KEY"
_ADVICE: Final = {
    State.HELD: "check its key, model name and permissions, then send the gateway SIGHUP",
    State.FAILING: "its provider fails: see its status page, or add another upstream",
    State.THROTTLING: "it is probed by itself; if that happens often, ask for a higher quota or add an upstream",
}


class Status(msgspec.Struct):
    """The part of the answer that is read here."""

    upstreams: Sequence[UpstreamStatus]


def judge_gates(gates: Sequence[UpstreamStatus]) -> Iterator[Finding]:
    """A finding for each upstream that the gateway knows."""
    counts = Counter(gate.model for gate in gates)
    places = Counter[str]()
    for gate in gates:
        places[gate.model] += 1
        number = f" {places[gate.model]}." if counts[gate.model] > 1 else ""
        yield _judge(f"running: {gate.model}{number}", gate)


def not_shown(listen: str) -> Finding:
    return ok(
        "running", f"{listen} shows its upstreams to keys of the role read: put one into {KEY_VARIABLE}"
    )


def not_read(why: str) -> Finding:
    return warn(
        "running",
        f"the gateway does not show its upstreams: {why}",
        "run the doctor of the version that is running",
    )


def _judge(check: str, gate: UpstreamStatus) -> Finding:
    waiting = gate.rt_queue + gate.be_queue
    found = "; ".join([f"{gate.upstream} is {gate.state}", *_more(gate, waiting)])
    match gate.state:
        case State.PAUSED:
            return warn(check, found, f"headgate models resume {gate.model}")
        case State.HELD | State.FAILING:
            return fail(check, found, _ADVICE[gate.state])
        case State.THROTTLING:
            return warn(check, found, _ADVICE[gate.state])
    if not gate.accepting:
        return warn(check, f"{found}; new calls are refused", "more slots or depth, or fewer callers")
    advice = ""
    if gate.limit and waiting > gate.total_slots - gate.available_slots:
        advice = "ask its provider for a higher quota, or add an upstream"
    elif gate.refused_share > MOSTLY:
        advice = "most calls fail there: look at headgate requests list"
    return warn(check, found, advice) if advice else ok(check, found)


def _more(gate: UpstreamStatus, waiting: int) -> Iterator[str]:
    if gate.probe_in_s is not None and gate.state is not State.PAUSED:
        yield (
            f"next probe in {gate.probe_in_s:.0f} s"
            if round(gate.probe_in_s)
            else "the next call is the probe"
        )
    if waiting:
        yield "1 call waits" if waiting == 1 else f"{waiting} calls wait"
    yield gate.limit or "no limit learned"
    if gate.refused_share >= 0.005:
        yield f"{gate.refused_share:.0%} of its last calls were refused or failed"
