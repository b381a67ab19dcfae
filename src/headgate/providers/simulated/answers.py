"""What a simulated provider says: canned answers, default ones that name their question, bad ones, and failures.

The real classification makes the failures, as for a real answer.
"""

import re
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from headgate.core.answer import Usage
from headgate.core.call import CHARS_PER_TOKEN, Message
from headgate.core.failures import Failure, FailureKind, from_answer, kind_of
from headgate.formats.chat import ChatRequest
from headgate.providers.simulated.script import Outcome, ScriptedOutcome
from headgate.providers.simulated.shaped import shaped_answer

LONGEST_ECHO_CHARS: Final = 80
BAD_TEXTS: Final[Mapping[Outcome, str]] = {
    Outcome.BLANK: "",
    Outcome.REPEAT: "This sentence says the same thing again. " * 50,
    Outcome.BAD_JSON: '{"label": "THINK", "reason": "this JSON never',
}
_CODE_BY_STATUS: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "invalid_api_key",
    429: "rate_limit_exceeded",
}


class Answers:
    """Chooses each call's text. Canned answers in order go out in the order of the calls."""

    def __init__(
        self, canned: Mapping[str, str] | Sequence[str], by_pattern: Mapping[str, str], seed: int
    ) -> None:
        self._by_question = canned if isinstance(canned, Mapping) else {}
        self._in_order = iter(() if isinstance(canned, Mapping) else canned)
        self._by_pattern = [(re.compile(pattern), answer) for pattern, answer in by_pattern.items()]
        self._seed = seed

    def text(self, request: ChatRequest, fate: ScriptedOutcome) -> str:
        """What the call will say if it comes to that; an error says nothing."""
        if fate.is_error:
            return ""
        bad = BAD_TEXTS.get(fate.outcome)
        text = self._good_text(request, fate) if bad is None else bad
        # JSON cannot hold half of a surrogate pair, which a library user's question may have.
        return text if text.isascii() else text.encode(errors="replace").decode()

    def _good_text(self, request: ChatRequest, fate: ScriptedOutcome) -> str:
        if fate.content is not None:
            return fate.content
        question = last_user_text(request.messages)
        canned = self._by_question.get(question)
        # A call that breaks off delivers no answer, so it uses up none.
        if canned is None and not fate.breaks_off:
            canned = next(self._in_order, None)
        if canned is None:
            canned = self._fitting(question)
        if canned is None:
            canned = shaped_answer(request.params.get("response_format"), question, self._seed)
        return default_answer(question, self._seed) if canned is None else canned

    def _fitting(self, question: str) -> str | None:
        found = ((pattern.search(question), answer) for pattern, answer in self._by_pattern)
        return next((match.expand(answer) for match, answer in found if match is not None), None)


def default_answer(question: str, seed: int) -> str:
    """Names its question, with a mark of all of it: answers to long questions can be told apart too."""
    mark = zlib.crc32(question.encode(errors="surrogatepass"), seed)
    echo = question if len(question) <= LONGEST_ECHO_CHARS else question[: LONGEST_ECHO_CHARS - 1] + "…"
    return f"simulated answer to: {echo} [{mark:08x}]"


def last_user_text(messages: Sequence[Message]) -> str:
    """The text of the last message from a user, else of the last message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return _text_of(message)
    return _text_of(messages[-1])


def _text_of(message: Message) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or ())


def pieces(text: str, count: int) -> list[str]:
    """The text in `count` pieces of about the same length, fewer when it is too short; none is empty."""
    count = min(count, len(text))
    return [text[len(text) * part // count : len(text) * (part + 1) // count] for part in range(count)]


def count_usage(messages: Sequence[Message], text: str, output_tokens: int | None) -> Usage:
    """Tokens as a provider would report them: counted from the characters, not estimated from the size of a body."""
    asked = -(-sum(len(_text_of(message)) for message in messages) // CHARS_PER_TOKEN)
    return Usage(asked, -(-len(text) // CHARS_PER_TOKEN) if output_tokens is None else output_tokens)


def finish_reason(fate: ScriptedOutcome) -> str:
    """Who repeats himself is stopped by the token limit."""
    return "length" if fate.outcome is Outcome.REPEAT else "stop"


def failure_of(
    fate: ScriptedOutcome, *, model: str, throttle_retry_after_s: float | None, now: datetime
) -> Failure:
    """The failure that a failing fate ends in."""
    if fate.outcome is Outcome.BROKEN:
        return Failure(kind=FailureKind.BROKEN, message=broken_message(model))
    status = fate.error_status
    if status is None:
        return from_answer(None, message=f"{model}: the connection broke (simulated)", now=now)
    code = fate.code if fate.code is not None else _CODE_BY_STATUS.get(status)
    wait_s = fate.retry_after_s
    if wait_s is None and kind_of(status, code) is FailureKind.THROTTLED:
        wait_s = throttle_retry_after_s
    headers = {} if wait_s is None else {"retry-after": str(wait_s)}
    return from_answer(status, headers, code=code, message=f"{model}: {status} (simulated)", now=now)


def connect_timed_out(model: str, waited_s: float) -> Failure:
    return Failure(
        kind=FailureKind.TRANSIENT,
        message=f"{model}: no connection within {waited_s:g} s (simulated)",
        timed_out=True,
    )


def broken_message(model: str) -> str:
    return f"{model}: an exception nobody foresaw (simulated)"
