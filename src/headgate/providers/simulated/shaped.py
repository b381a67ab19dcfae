"""Answers in a shape: JSON that fits the schema a request asks for (`response_format`), the same for the same question and seed.

Bounds that real providers refuse in a schema may stand at the end of a `description`, as JSON: a model reads them there, and so
does this. A schema comes from a stranger: how much is made of it, and how much of it is read, is bounded.
"""

import re
import zlib
from collections.abc import Mapping
from itertools import islice
from typing import Any, Final

import msgspec

MOST_VALUES: Final = 1000
LONGEST_TEXT_CHARS: Final = 10_000
LONGEST_PATTERN_CHARS: Final = 200
LONGEST_NAME_CHARS: Final = 200
LONGEST_REFERENCE_CHARS: Final = 1000
LONGEST_DESCRIPTION_CHARS: Final = 10_000
CHARS_PER_VALUE: Final = 100
"""So many characters of a schema, or of an answer, count as one value."""
VALUES_PER_PATTERN: Final = 10
"""To compile a pattern and to try it takes as long as to make so many."""
MOST_OPTIONS: Final = 100
"""Looked at, where several schemas or types are allowed."""
LABEL_CHARS: Final = 40
"""Texts that must be shorter are labels, not sentences."""
DEEPEST: Final = 20
_SAMPLES: Final = ("en", "a", "A", "0", "US", "1.0", "A-1", "#000000", "2026-01-01", "simulated")
"""Tried where a text must match a pattern."""
_ENDLESS: Final = re.compile(r"\)[*+?{]|(?:[*+?{].*){5}|\(\?|[^\x00-\x7f]|\\[uUN]", re.DOTALL)
"""Patterns that may be written to take for ever are not tried: repeated groups, many repetitions, looking around, and
classes of characters beyond ASCII (30 ms to compile one)."""
_PADDING: Final = " This is a simulated answer."
_LABEL: Final = "simulated"

Schema = Mapping[str, Any]


def shaped_answer(asked: object, question: str, seed: int) -> str | None:
    """What a request with this `response_format` is answered; None when it asks for no shape."""
    if not isinstance(asked, Mapping):
        return None
    if asked.get("type") == "json_object":
        return _json({"answer": f"simulated answer to: {_echo(question)}"})
    described = asked.get("json_schema")
    schema = described.get("schema") if isinstance(described, Mapping) else None
    if asked.get("type") != "json_schema" or not isinstance(schema, Mapping):
        return None
    return _json(_Shaping(schema, question, seed).value(schema, "answer"))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


class _Shaping:
    """One answer in the making."""

    def __init__(self, root: Schema, question: str, seed: int) -> None:
        self._root = root
        self._question = _echo(question)
        self._mark = zlib.crc32(question.encode(errors="surrogatepass"), seed)
        self._left = MOST_VALUES
        # Many items of a list are made from one schema, which is then read once.
        self._resolutions: dict[int, Schema] = {}
        self._samples: dict[tuple[str, int, int], str | None] = {}

    def value(self, schema: object, name: str, depth: int = 0) -> Any:
        self._left -= 1
        if not isinstance(schema, Mapping) or self._left < 0 or depth > DEEPEST:
            return None
        schema = self._resolved(schema)
        if "const" in schema:
            return self._copied(schema["const"])
        if isinstance(options := schema.get("enum"), list) and options:
            return self._copied(options[self._chance(name) % len(options)])
        for several in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(several), list) and options:
                something = filter(_is_something, islice(options, MOST_OPTIONS))
                return self.value(next(something, options[0]), name, depth + 1)
        return self._plain(schema, name, depth)

    def _plain(self, schema: Schema, name: str, depth: int) -> Any:
        match _type_of(schema):
            case "object":
                parts = schema.get("properties")
                named = parts.items() if isinstance(parts, Mapping) else ()
                return {key: self._part(key, part, depth) for key, part in islice(named, max(self._left, 0))}
            case "array":
                items = schema.get("items")
                return [self.value(items, name, depth + 1) for _ in range(self._count(schema))]
            case simple:
                return self._simple(schema, name, simple)

    def _part(self, name: str, schema: object, depth: int) -> Any:
        self._charge(len(name))
        return self.value(schema, name[:LONGEST_NAME_CHARS], depth + 1)

    def _copied(self, value: Any) -> Any:
        """A value of the schema itself, which may be as long as a request."""
        self._charge(len(msgspec.json.encode(value)))
        return value

    def _charge(self, chars: int) -> None:
        self._left -= chars // CHARS_PER_VALUE

    def _simple(self, schema: Schema, name: str, kind: str | None) -> Any:
        match kind:
            case "string":
                return self._text(schema, name)
            case "integer":
                return int(self._number(schema, name, step=1))
            case "number":
                return round(self._number(schema, name, step=0.01), 2)
            case "boolean":
                return bool(self._chance(name) % 2)
            case _:
                return None

    def _count(self, schema: Schema) -> int:
        """One item, unless there must be more or may be none."""
        wanted = min(max(1, _bound(schema, "minItems", 1)), _bound(schema, "maxItems", MOST_VALUES))
        return int(min(wanted, max(self._left, 0)))

    def _resolved(self, schema: Schema) -> Schema:
        resolution = self._resolutions.get(id(schema))
        if resolution is None:
            resolution = self._resolutions[id(schema)] = self._resolve(schema)
        return resolution

    def _resolve(self, schema: Schema) -> Schema:
        """Without references and with the bounds of its description; references in a circle lead nowhere."""
        for _ in range(DEEPEST):
            reference = schema.get("$ref")
            if not isinstance(reference, str):
                return {**self._told_bounds(schema), **schema}
            if len(reference) > LONGEST_REFERENCE_CHARS:
                return {}
            self._charge(len(reference))
            found: Any = self._root
            for step in reference.removeprefix("#").strip("/").split("/"):
                found = found.get(step) if step and isinstance(found, Mapping) else found
            schema = found if isinstance(found, Mapping) else {}
        return {}

    def _told_bounds(self, schema: Schema) -> Schema:
        described = schema.get("description")
        if not isinstance(described, str) or not described.endswith("}"):
            return {}
        if len(described) > LONGEST_DESCRIPTION_CHARS:
            return {}
        self._charge(len(described))
        try:
            told = msgspec.json.decode(described[described.index("{") :])
        except (ValueError, msgspec.DecodeError):
            return {}
        return told if isinstance(told, dict) else {}

    def _text(self, schema: Schema, name: str) -> str:
        least = min(int(_bound(schema, "minLength", 0)), LONGEST_TEXT_CHARS)
        most = max(least, min(int(_bound(schema, "maxLength", LONGEST_TEXT_CHARS)), LONGEST_TEXT_CHARS))
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and (sample := self._sample(pattern, least, most)) is not None:
            return sample
        text = _LABEL if most < LABEL_CHARS else self._sentence(name, most)
        while len(text) < least:
            text += _PADDING
        self._charge(len(text))
        # An ellipsis stays where blanks would be: no text ends in one.
        return (
            text if len(text) <= most else text[: most - 1].rstrip().ljust(most - 1, "…") + "…" * (most > 0)
        )

    def _sample(self, pattern: str, least: int, most: int) -> str | None:
        if (pattern, least, most) not in self._samples:
            self._left -= VALUES_PER_PATTERN
            self._samples[pattern, least, most] = _matching(pattern, least, most)
        return self._samples[pattern, least, most]

    def _sentence(self, name: str, most: int) -> str:
        """Names its question, with a mark of all of it where there is room."""
        sentence = f"Simulated {name}: {self._question}"
        marked = f"{sentence} [{self._mark:08x}]."
        return marked if len(marked) <= most else sentence

    def _number(self, schema: Schema, name: str, *, step: float) -> float:
        """From its least to its most in steps; without bounds from 0 to 100 of them."""
        least = max(_bound(schema, "minimum", 0), _bound(schema, "exclusiveMinimum", -step) + step)
        usual = least + 100 * step
        most = min(_bound(schema, "maximum", usual), _bound(schema, "exclusiveMaximum", usual + step) - step)
        steps = max(int((most - least) / step), 0)
        return min(least, most) + self._chance(name) % (steps + 1) * step

    def _chance(self, name: str) -> int:
        return zlib.crc32(name.encode(errors="surrogatepass"), self._mark)


def _echo(question: str) -> str:
    """The beginning of the question on one line, without what acts on a screen."""
    words = "".join(char if char.isprintable() else " " for char in question[: 4 * LABEL_CHARS]).split()
    line = " ".join(words) or "nothing"
    if len(line) <= LABEL_CHARS:
        return line
    return line[: LABEL_CHARS + 1].rpartition(" ")[0] or line[:LABEL_CHARS]


def _type_of(schema: Schema) -> str | None:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in islice(kind, MOST_OPTIONS) if one != "null"), None)
    if kind is None and "properties" in schema:
        return "object"
    return kind if isinstance(kind, str) else None


def _is_something(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") != "null"


def _bound(schema: Schema, name: str, usual: float) -> float:
    value = schema.get(name)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if usable and value is not None else usual


def _matching(pattern: str, least: int, most: int) -> str | None:
    if len(pattern) > LONGEST_PATTERN_CHARS or _ENDLESS.search(pattern):
        return None
    try:
        found = re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        return None
    return next((one for one in _SAMPLES if least <= len(one) <= most and found.search(one)), None)
