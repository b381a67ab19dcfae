"""Mistakes in settings and records: where they are and what would be right, all of them at once."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from headgate.core.errors import SettingsError

UNBOUNDED: Final = math.inf
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake: a dotted path (`models.summary.upstreams[0].slots`) and what to do about it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message

    def under(self, prefix: str) -> "Problem":
        joined = f"{prefix}.{self.path}" if self.path and prefix else prefix or self.path
        return Problem(joined, self.message)


class InvalidSettings(SettingsError):
    """Settings that cannot be used. `problems` holds every mistake, not just the first."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        heading = "1 mistake in the settings" if count == 1 else f"{count} mistakes in the settings"
        super().__init__("\n".join([f"{heading}:", *(f"  {problem}" for problem in self.problems)]))


class Review:
    """Collects the mistakes of one record, then refuses them together."""

    __slots__ = ("problems",)

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def number(
        self,
        name: str,
        value: object,
        *,
        least: float = 0,
        most: float = UNBOUNDED,
        above: float | None = None,
        whole: bool = False,
    ) -> None:
        """Check a number; None passes (the field's type says whether it may be None)."""
        if value is None:
            return
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or (whole and isinstance(value, float))
        ):
            self.add(name, f"must be a {'whole ' if whole else ''}number, not {value!r}")
        elif isinstance(value, float) and not math.isfinite(value):
            self.add(name, f"must be a finite number, not {value!r}")
        elif above is not None and value <= above:
            self.add(name, f"must be more than {above:g}, not {value!r}")
        elif value < least:
            self.add(name, f"must be at least {least:g}, not {value!r}")
        elif value > most:
            self.add(name, f"must be at most {most:g}, not {value!r}")

    def choice(self, name: str, value: object, choices: type[E]) -> E | None:
        """The enum's member of this value; its plain text will do."""
        try:
            return choices(value)
        except ValueError:
            known = ", ".join(str(choice.value) for choice in choices)
            self.add(name, f"must be one of {known}, not {value!r}")
            return None

    def add(self, name: str, message: str) -> None:
        self.problems.append(Problem(name, message))

    def refuse(self) -> None:
        if self.problems:
            raise InvalidSettings(self.problems)
