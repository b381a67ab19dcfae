"""What the environment brings: overrides of whole values, and variables inside of texts.

`HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS=5` goes over the file. A part of a name matches a key whatever its
case, with `_` for every character that is no letter or digit. Names with a single underscore (`HEADGATE_URL`)
are no overrides. `${NAME}` in a text is filled in; `$${` stands for the characters `${`. A text that is only `$NAME`
is a mistake: it was meant to be filled in, and would be used as it is. And `DATABASE_URL` names the database where
nothing else does.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from headgate.settings.findings import Findings
from headgate.settings.places import TOP, Place, written
from headgate.settings.yaml_text import Filled, Unreadable, meaning, read_yaml

PREFIX: Final = "HEADGATE__"
DATABASE_URL: Final = "DATABASE_URL"
_SEPARATOR: Final = "__"
_BARE: Final = re.compile(r"\s*\$(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*")
_SPOT: Final = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}|\$\{")


class _Astray(Exception):
    """The variable's name leads nowhere."""


def override(tree: dict[str, Any], env: Mapping[str, str], findings: Findings) -> None:
    """Put every override into the tree, in the order of their names."""
    for variable in sorted(env):
        if variable.startswith(PREFIX):
            try:
                place = _put(tree, variable.removeprefix(PREFIX), value_of(env[variable]))
            except _Astray as error:
                findings.add((variable,), str(error))
            else:
                findings.variables[place] = variable


def adopt_database(tree: dict[str, Any], env: Mapping[str, str], findings: Findings) -> None:
    """Take the database that the surroundings offer, where neither the file nor an override names one."""
    url = env.get(DATABASE_URL, "")
    if url.strip() and "database" not in tree:
        tree["database"] = url
        findings.variables["database",] = DATABASE_URL


def value_of(text: str) -> Any:
    """A number, a boolean, null, a quoted text, a list or mapping in brackets; anything else is itself."""
    stripped = text.strip()
    if not stripped.startswith(("[", "{", '"', "'")):
        value = meaning(stripped)
        return text if isinstance(value, str) else value
    findings = Findings()
    try:
        value = read_yaml(stripped, findings)
    except Unreadable:
        return text
    return text if findings else value


def _put(node: Any, name: str, value: Any, place: Place = TOP) -> Place:
    """Follow the name into the tree and set the value; the answer is the uppermost place that is new."""
    key, rest = _step(node, name, place)
    here = (*place, key)
    if rest is None:
        node[key] = value
        return here
    # An empty section is none yet: a name may lead through it.
    if isinstance(key, int) or node.get(key) is not None:
        return _put(node[key], rest, value, here)
    branch: dict[str, Any] = {}
    _put(branch, rest, value, here)
    # Put in its place only now: a name that leads nowhere leaves nothing behind.
    node[key] = branch
    return here


def _step(node: Any, name: str, place: Place) -> tuple[str | int, str | None]:
    """The next key or index, and what is left of the name: None when nothing is."""
    part, separator, after = name.partition(_SEPARATOR)
    rest = after if separator else None
    if isinstance(node, dict):
        return _known_key(node, name, place) or (_new_key(part), rest)
    if not isinstance(node, list):
        raise _Astray(f"{written(place)} has no parts that could be set")
    if not (part.isascii() and part.isdigit()):
        raise _Astray(f"{written(place)} is a list: after it comes a number")
    if len(part) > 9 or int(part) >= len(node):
        raise _Astray(f"there is no {written(place)}[{part[:20]}]: the list has {len(node)}, counted from 0")
    return int(part), rest


def _known_key(node: dict[str, Any], name: str, place: Place) -> tuple[str, str | None] | None:
    """The longest key that the name begins with: `simulated/*` holds a separator itself."""
    found = [key for key in node if _begins(name.upper(), _as_part(key))]
    longest = max(map(len, found), default=0)
    key, *others = [key for key in found if len(key) == longest] or [""]
    if not key:
        return None
    if others:
        names = ", ".join(written((*place, other)) for other in (key, *others))
        raise _Astray(f"could mean any of {names}")
    return key, name[longest + len(_SEPARATOR) :] if len(name) > longest else None


def _begins(name: str, part: str) -> bool:
    return name == part or name.startswith(part + _SEPARATOR)


def _new_key(part: str) -> str:
    if not part:
        raise _Astray("a part of the name is empty")
    return part.lower()


def _as_part(key: str) -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", key).upper()


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
        case str() if bare := _BARE.fullmatch(tree):
            findings.reject(place, f"a variable is filled in only with braces: write ${{{bare['name']}}}")
            return tree
        case _:
            return tree


def _filled(text: str, env: Mapping[str, str], findings: Findings, place: Place) -> str:
    used: list[str] = []
    mistakes: list[str] = []

    def stand_in(spot: re.Match[str]) -> str:
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

    result = _SPOT.sub(stand_in, text)
    if mistakes:
        findings.reject(place, *mistakes)
    for secret in (*used, result, meaning(result.strip())) if used else ():
        findings.secrets.add(place, secret)
    return Filled(result) if used else result
