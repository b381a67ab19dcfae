"""What one check came to."""

import enum

import msgspec


class State(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the report: what was found, and what to do where something should be done."""

    check: str
    state: State
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, state=State.OK, found=found)


def warn(check: str, found: str, advice: str) -> Finding:
    return Finding(check=check, state=State.WARN, found=found, advice=advice)


def fail(check: str, found: str, advice: str) -> Finding:
    return Finding(check=check, state=State.FAIL, found=found, advice=advice)
