"""What reading has found so far: mistakes, who set what, and what must not be shown."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headgate.core.problems import InvalidSettings, Problem
from headgate.settings.places import TOP, Place, place_of, places_of, upwards, written
from headgate.settings.secrets import Secrets


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake at a place; `tail` ends its path with what the place does not know."""

    place: Place
    message: str
    tail: str = ""


class Findings:
    """Collects while everything is read to the end, then refuses once, in the order of the file."""

    def __init__(self) -> None:
        self.secrets = Secrets()
        self.variables: dict[Place, str] = {}
        """Which environment variable has set the value of a place."""
        self._findings: list[Finding] = []
        self._useless: set[Place] = set()
        """Places whose values are known to be wrong: whatever else is found there is only an echo."""

    def __bool__(self) -> bool:
        return bool(self._findings)

    def add(self, place: Place, message: str, *, tail: str = "") -> None:
        if self._useless.isdisjoint(upwards(place)):
            self._findings.append(Finding(place, message, tail))

    def reject(self, place: Place, *messages: str) -> None:
        """Like `add`, for a value that nobody else needs to judge."""
        for message in messages:
            self.add(place, message)
        self._useless.add(place)

    def take(self, problems: Iterable[Problem], place: Place) -> None:
        """A record's problems; their paths begin with the names of its fields."""
        for problem in problems:
            self.add((*place, *place_of(problem.path)), problem.message)

    def variable_of(self, place: Place) -> str | None:
        return next((self.variables[upper] for upper in upwards(place) if upper in self.variables), None)

    def refuse(self, tree: Any = None) -> None:
        """Raise all mistakes found, if there are any."""
        if self:
            order = {place: rank for rank, place in enumerate(places_of(tree))}
            found = sorted(self._findings, key=lambda finding: _rank(finding.place, order))
            raise InvalidSettings(dict.fromkeys(map(self._problem, found)))

    def _problem(self, finding: Finding) -> Problem:
        path = written(finding.place) + finding.tail
        message = self.secrets.hide(finding.place, finding.message)
        variable = self.variable_of(finding.place)
        return Problem(path, f"{message} (set by {variable})" if variable else message)


def _rank(place: Place, order: dict[Place, int]) -> int:
    """The position of the place, or of the nearest one above it that the file has."""
    if place == TOP:
        return 0
    return next((order[upper] for upper in upwards(place) if upper in order), len(order))
