"""The judge's contract: the prompts and the schema of its answers, as files under `prompts/` with their version."""

import enum
import re
from importlib import resources
from typing import Annotated, Any, Final

import msgspec

import headgate
from headgate.apps.newsletter.items import Item, one_line
from headgate.apps.newsletter.profile import Profile

VERSION: Final = "judge-v1"
MOST_OUTPUT_TOKENS: Final = 1000
_FENCED: Final = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)


class Label(enum.StrEnum):
    """How much an item matters to the reader, most first."""

    ACT_NOW = "ACT_NOW"
    THINK = "THINK"
    FYI = "FYI"
    IGNORE = "IGNORE"


Tag = Annotated[str, msgspec.Meta(min_length=1, max_length=30)]


class Judgement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model must answer; `prompts/judge-v1.schema.json` is made of it."""

    interest_label: Label
    confidence: Annotated[float, msgspec.Meta(ge=0, le=1)]
    summary: Annotated[str, msgspec.Meta(min_length=1, max_length=300)]
    tags: Annotated[tuple[Tag, ...], msgspec.Meta(min_length=1, max_length=3)]


_decoder = msgspec.json.Decoder(Judgement)


def read_judgement(content: str | None) -> Judgement:
    """The answer, checked against the schema; `ValueError` says where it does not fit. A code fence around it is fine."""
    text = content or ""
    if fenced := _FENCED.match(text):
        text = fenced[1]
    try:
        return _clean(_decoder.decode(text))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ValueError(f"the answer is not as {VERSION} asks: {error}") from error


def _clean(said: Judgement) -> Judgement:
    """A model repeats what it read: its words are as strange as the article's."""
    summary, tags = one_line(said.summary), tuple(filter(None, map(one_line, said.tags)))
    if not summary or not tags:
        raise msgspec.ValidationError("`summary` and `tags` must not be blank")
    return msgspec.structs.replace(said, summary=summary, tags=tags)


def check_answer(answer: headgate.Answer) -> None:
    """For the gateway: an answer that raises here is generated anew."""
    read_judgement(answer.content)


class Prompts:
    """The files, filled in for one profile."""

    def __init__(self, profile: Profile) -> None:
        fields = {"reader": profile.reader, "interests": profile.words(), "language": profile.language}
        self._system = _filled(_file("system.md"), fields)
        self._user = _file("user.md")

    def messages(self, item: Item) -> list[dict[str, Any]]:
        article = {
            "title": item.title,
            "url": item.url,
            "source": item.source,
            "description": item.description,
        }
        # As JSON, so that no article can end its own quotation.
        quoted = msgspec.json.format(msgspec.json.encode(article), indent=1).decode()
        return [
            {"role": "system", "content": self._system},
            {"role": "user", "content": _filled(self._user, {"article": quoted})},
        ]


def _file(kind: str) -> str:
    return (resources.files(__package__) / "prompts" / f"{VERSION}.{kind}").read_text(encoding="utf-8")


def _filled(template: str, fields: dict[str, str]) -> str:
    """In one pass: what is filled in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: fields[match[1]], template)
