"""`${NAME}` in a text is filled in from the environment; `$${` stands for the characters `${`."""

import re
from collections.abc import Mapping
from typing import Any, Final

from headgate.settings.findings import Findings
from headgate.settings.places import TOP, Place
from headgate.settings.scalars import Filled, meaning

_SPOT: Final = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|\$\{")


def fill(tree: Any, env: Mapping[str, str], findings: Findings, place: Place = TOP) -> Any:
    """The tree with its variables filled in. What a variable has set as a whole is taken as it is."""
    if place in findings.variables:
        return tree
    match tree:
        case dict():
            return {key: fill(value, env, findings, (*place, key)) for key, value in tree.items()}
        case list():
            return [fill(value, env, findings, (*place, index)) for index, value in enumerate(tree)]
        case str() if "${" in tree:
            return _filled(tree, env, findings, place)
        case _:
            return tree


def _filled(text: str, env: Mapping[str, str], findings: Findings, place: Place) -> str:
    used: list[str] = []
    mistakes: list[str] = []

    def value_of(spot: re.Match[str]) -> str:
        name = spot["name"]
        if spot.group() == "$${":
            return "${"
        if name is None:
            mistakes.append("holds a ${ without a variable's name; write $${ for the characters ${")
        elif name not in env:
            mistakes.append(f"the environment variable {name} is not set")
        else:
            used.append(env[name])
            return env[name]
        return spot.group()

    result = _SPOT.sub(value_of, text)
    if mistakes:
        findings.reject(place, *mistakes)
    for secret in (*used, result, meaning(result.strip())) if used else ():
        findings.secrets.add(place, secret)
    return Filled(result) if used else result
