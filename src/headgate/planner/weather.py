"""Weathers: how an upstream refuses calls, said as a name and a number. Each is short for fields of its description."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from headgate.core.spelling import did_you_mean
from headgate.planner.scenario import read_seconds

RETRY_AFTER_S: Final = 1.0
OUTAGE_AT_S: Final = 3.0
"""When an outage begins that is given by its length."""


class Weather(NamedTuple):
    """One way to refuse calls."""

    example: str
    meaning: str
    fields: Callable[[str], Mapping[str, Any]]
    """Of an `UpstreamShape`, by the number. Raises ValueError."""


def read_weather(text: str) -> tuple[str, Mapping[str, Any]]:
    """`quota=20`: its name, and the fields that it stands for."""
    name, _, number = (part.strip() for part in text.partition("="))
    weather = WEATHERS.get(name)
    if weather is None:
        known = ", ".join(each.example for each in WEATHERS.values())
        raise ValueError(f"{name!r:.40} is no weather{did_you_mean(name, WEATHERS) or ';'} known: {known}")
    try:
        return name, weather.fields(number)
    except ValueError:
        raise ValueError(f"{text!r:.60}: write {weather.example}, {weather.meaning}") from None


def _share(number: str) -> float:
    share = float(number)
    if not 0 < share <= 1:
        raise ValueError
    return share


def _count(number: str) -> int:
    count = int(number)
    if count < 1:
        raise ValueError
    return count


def _chance(number: str) -> Mapping[str, Any]:
    return {"throttled": _share(number), "retry_after_s": RETRY_AFTER_S}


def _errors(number: str) -> Mapping[str, Any]:
    return {"failing": _share(number)}


def _quota(number: str) -> Mapping[str, Any]:
    return {"requests_per_second": _count(number), "retry_after_s": RETRY_AFTER_S}


def _windows(number: str) -> Mapping[str, Any]:
    requests, _, span = number.partition("/")
    return {"requests_per_window": (_count(requests), _length(span))}


def _in_flight(number: str) -> Mapping[str, Any]:
    return {"max_in_flight": _count(number), "retry_after_s": RETRY_AFTER_S}


def _outage(number: str) -> Mapping[str, Any]:
    return {"outages": [(OUTAGE_AT_S, OUTAGE_AT_S + _length(number))]}


def _length(text: str) -> float:
    seconds = read_seconds(text)
    if not seconds > 0:
        raise ValueError
    return seconds


WEATHERS: Final[Mapping[str, Weather]] = {
    "chance": Weather("chance=0.1", "the share of calls answered 429 by chance, at most 1", _chance),
    "errors": Weather("errors=0.1", "the share of calls answered 503 by chance, at most 1", _errors),
    "quota": Weather("quota=20", "the calls that it takes in any second", _quota),
    "windows": Weather(
        "windows=84/6", "the calls that it takes per window, and a window's seconds", _windows
    ),
    "in-flight": Weather("in-flight=8", "the calls that it takes at one time", _in_flight),
    "outage": Weather("outage=4", "the seconds for which it is down", _outage),
}
