"""How a summary comes about: in one go, or part by part and then from the notes. Who asks the model is handed in."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

import headgate
from headgate.apps.articles.chunking import chunks, is_long
from headgate.apps.articles.contracts import PART, SUMMARY, WHOLE, Contract
from headgate.apps.articles.shapes import Draft

BLANK: Final = "the answer is blank"
Write = Callable[[str, Contract, str], Awaitable[Draft]]
"""Given a step's name, a contract and a text: what the model wrote. The same step is the same text."""


async def summarise(content: str, write: Write) -> Draft:
    """One after another, so that a long article takes one slot like any other."""
    if not is_long(content):
        return await write("summary", SUMMARY, content)
    notes: list[Draft] = []
    text, level = content, 0
    while is_long(text):
        level += 1
        latest = [
            await write(f"part {level}.{number}", PART, piece) for number, piece in enumerate(chunks(text), 1)
        ]
        notes += latest
        text = "\n\n".join(note.summary for note in latest)
    whole = await write("whole", WHOLE, text)
    return _with_cost_of(whole, notes)


def _with_cost_of(whole: Draft, notes: Sequence[Draft]) -> Draft:
    return msgspec.structs.replace(
        whole,
        prompt_tokens=sum(one.prompt_tokens for one in (whole, *notes)),
        completion_tokens=sum(one.completion_tokens for one in (whole, *notes)),
    )


def unusable(why: str, *, attempts: int) -> headgate.OutputInvalid:
    """422: the model was asked, and its answers were no good."""
    failure = headgate.Failure(kind=headgate.FailureKind.INVALID_OUTPUT, message=why)
    return headgate.OutputInvalid(f"no usable summary: {why}", failure=failure, attempts=attempts)
