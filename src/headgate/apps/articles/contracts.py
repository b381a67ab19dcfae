"""What the model is asked and what it may answer: the files in `texts`, by name and version, each with its schema."""

from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import msgspec

from headgate.apps.articles.repetition import repeats

_TEXTS: Final = resources.files(__package__) / "texts"


@dataclass(frozen=True, slots=True)
class Contract:
    """A prompt with a place for the text, and the bounds of the answer."""

    name: str
    wording: str
    least_chars: int
    most_chars: int

    def messages(self, text: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": self.wording.replace("{text}", text)}]

    def flaw(self, answer: str) -> str | None:
        """Why an answer that is not blank cannot be used."""
        if not self.least_chars <= len(answer) <= self.most_chars:
            return f"the answer has {len(answer):,} characters; {self.least_chars:,} to {self.most_chars:,} are allowed"
        return "the answer repeats itself" if repeats(answer) else None


def _read(name: str, schema: str) -> Contract:
    bounds = msgspec.json.decode((_TEXTS / f"{schema}.schema.json").read_bytes())
    wording = (_TEXTS / f"{name}.md").read_text(encoding="utf-8")
    return Contract(name, wording, bounds["minLength"], bounds["maxLength"])


SUMMARY: Final = _read("summary-v1", "summary-v1")
PART: Final = _read("part-v1", "part-v1")
WHOLE: Final = _read("whole-v1", "summary-v1")
