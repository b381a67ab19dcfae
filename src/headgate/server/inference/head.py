"""What a client says in headers about how its request shall be treated."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from headgate.core.call import Lane, check_text, read_lane
from headgate.core.errors import InvalidRequest
from headgate.core.idempotency import check_key

_WANTED: Final = frozenset(
    {
        b"x-headgate-lane",
        b"x-headgate-timeout",
        b"x-headgate-wait",
        b"x-stainless-read-timeout",
        b"x-headgate-agent",
        b"idempotency-key",
        b"prefer",
        b"traceparent",
    }
)


_YES_OR_NO: Final = {"yes": True, "no": False}


class Head(msgspec.Struct, frozen=True):
    """Every field has a default that means: nothing was said."""

    lane: Lane | None = None
    deadline_s: float | None = None
    wait: bool = True
    agent_id: str | None = None
    key: str | None = None
    respond_async: bool = False
    traceparent: str | None = None
    """Whose step this request is, as W3C Trace Context has it."""


_NOTHING: Final = Head()


def read_head(headers: Iterable[tuple[bytes, bytes]], said: Mapping[bytes, bytes]) -> Head:
    """`InvalidRequest` names the header that makes no sense. `said` is `headers` by name."""
    if _WANTED.isdisjoint(said):
        return _NOTHING
    found = [header for header in headers if header[0] in _WANTED]
    if len({name for name, _ in found}) != len(found):
        _check_once(found)
    lane = said.get(b"x-headgate-lane")
    key = said.get(b"idempotency-key")
    traceparent = said.get(b"traceparent")
    respond_async = any(name == b"prefer" and _is_async(value) for name, value in found)
    if respond_async and b"x-headgate-timeout" in said:
        raise InvalidRequest(
            "X-Headgate-Timeout is for who waits: leave it out with Prefer: respond-async",
            param="X-Headgate-Timeout",
        )
    return Head(
        lane=None if lane is None else read_lane(lane.decode("latin-1").strip()),
        deadline_s=_deadline_s(said),
        wait=_wait(said.get(b"x-headgate-wait", b"yes")),
        agent_id=_agent_id(said.get(b"x-headgate-agent")),
        key=None if key is None else read_key(key),
        respond_async=respond_async,
        traceparent=None if traceparent is None else traceparent.decode("latin-1"),
    )


def _check_once(found: Iterable[tuple[bytes, bytes]]) -> None:
    """Which of two keys or lanes would be meant is anybody's guess. Only `Prefer` is a list, and no trace is worth a refusal."""
    names = [name.decode() for name, _ in found if name not in {b"prefer", b"traceparent"}]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequest(f"the header {twice} comes twice", param=twice)


def _deadline_s(said: Mapping[bytes, bytes]) -> float | None:
    """Ours wins; the official clients say how long they read for, and need not know of us."""
    ours = said.get(b"x-headgate-timeout")
    if ours is not None:
        deadline_s = _seconds(ours)
        if deadline_s is None:
            raise InvalidRequest(
                "X-Headgate-Timeout must be a number of seconds above 0", param="X-Headgate-Timeout"
            )
        return deadline_s
    return _seconds(said.get(b"x-stainless-read-timeout", b""))


def _wait(value: bytes) -> bool:
    word = value.decode("latin-1").strip().lower()
    if word not in _YES_OR_NO:
        raise InvalidRequest("X-Headgate-Wait must be yes or no", param="X-Headgate-Wait")
    return _YES_OR_NO[word]


def _seconds(value: bytes) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 < seconds < math.inf else None


def _is_async(prefer: bytes) -> bool:
    """RFC 7240: a list of wishes, each perhaps with parameters."""
    wishes = prefer.lower().split(b",")
    return any(wish.partition(b";")[0].strip() == b"respond-async" for wish in wishes)


def _agent_id(value: bytes | None) -> str | None:
    if value is None:
        return None
    agent_id = value.decode("utf-8", "replace").strip()
    check_text("X-Headgate-Agent", agent_id)
    return agent_id


def read_key(value: bytes) -> str:
    """An idempotency key: bare, or in quotes as the IETF draft has it."""
    key = value.decode("latin-1").strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    check_key(key)
    return key
