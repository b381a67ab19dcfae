"""What the model is asked and what its answer must be: the files under `contract/`, and the check against them."""

import importlib.resources
import re
import unicodedata
from typing import Annotated, Any, Final, Literal

import msgspec

import headgate

VERSION: Final = "v1"
"""Kept with every description: it says which prompt and which schema made it."""
_HERE: Final = importlib.resources.files(__package__) / "contract" / VERSION
PROMPT: Final = (_HERE / "prompt.md").read_text(encoding="utf-8")
SCHEMA: Final[dict[str, Any]] = msgspec.json.decode((_HERE / "schema.json").read_bytes())
_BOUNDS: Final = frozenset({"minLength", "maxLength", "maxItems", "pattern"})
"""Providers refuse schemas with these; a description may say them."""
_RULER: Final = "====="
_FENCE: Final = re.compile(r"^\s*```(?:json)?\s*(.*?)\s*```\s*$", re.DOTALL)


class Description(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's answer, as the schema has it."""

    title: Annotated[str, msgspec.Meta(min_length=1, max_length=60)]
    summary: Annotated[str, msgspec.Meta(min_length=120, max_length=200)]
    category: Literal["tech", "news", "blog", "video", "other"]
    tags: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=30)]], msgspec.Meta(max_length=5)
    ]
    language: Annotated[str, msgspec.Meta(pattern="^([a-z]{2,3}|other)$")]


_decoder: Final = msgspec.json.Decoder(Description)


def messages(*, url: str, title: str | None, excerpt: str) -> list[dict[str, str]]:
    """The page cannot end its own excerpt: rulers in it are taken out."""
    shown = excerpt.replace(_RULER, "")
    said = [f"Address: {url}", f"Title: {title}" if title else "", _RULER, shown, _RULER]
    return [
        {"role": "system", "content": PROMPT},
        {"role": "user", "content": "\n".join(filter(None, said))},
    ]


def response_format() -> dict[str, Any]:
    """The schema in the words that all providers understand."""
    return {
        "type": "json_schema",
        "json_schema": {"name": "bookmark", "strict": True, "schema": _with_told_bounds(SCHEMA)},
    }


def read(content: str | None) -> Description:
    """The description in an answer; ValueError says where it breaks the contract."""
    text = content or ""
    fenced = _FENCE.match(text)
    described = _decoder.decode(fenced[1] if fenced else text)
    for words in (described.title, described.summary, *described.tags):
        if tidy(words) != words:
            raise ValueError("a text holds control characters, or white space that says nothing")
    return described


def check(answer: headgate.Answer) -> None:
    """For the dispatcher: an answer that breaks the contract is generated anew."""
    read(answer.content)


def tidy(text: str) -> str:
    """On one line, without what acts on a screen or cannot be stored."""
    return " ".join("".join(char for char in text if _is_harmless(char)).split())


def _is_harmless(char: str) -> bool:
    return char.isspace() or unicodedata.category(char) not in {"Cc", "Cs"}


def _with_told_bounds(schema: Any) -> Any:
    """Bounds as words: the model reads them, and `check` holds it to them."""
    if not isinstance(schema, dict):
        return schema
    kept = {name: _with_told_bounds(value) for name, value in schema.items() if name not in _BOUNDS}
    bounds = {name: value for name, value in schema.items() if name in _BOUNDS}
    return {**kept, "description": msgspec.json.encode(bounds).decode()} if bounds else kept
