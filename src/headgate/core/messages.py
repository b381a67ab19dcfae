"""What is asked and what is answered. These records know nothing of providers, gates or HTTP."""

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from headgate.core.errors import InvalidRequest

Message = Mapping[str, Any]

# About a million tokens: beyond every context window. Images and other parts are not text and not counted.
LONGEST_TEXT_CHARS: Final = 4_000_000
LONGEST_ID_CHARS: Final = 255
LONGEST_SHOWN_CHARS: Final = 60
"""Of a wrong value that an error quotes."""
CHARS_PER_TOKEN: Final = 4
EXPECTED_OUTPUT_TOKENS: Final = 256
MOST_OUTPUT_TOKENS: Final = 10_000_000
MOST_TOKENS: Final = 100_000_000
"""More than any call can use. Who counts more counts wrongly, and limits, prices and metrics are made of such counts."""
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""A count of tokens in a provider's answer. One that is none makes the usage unknown, never the answer wrong."""
MOST_CHOICES: Final = 1000
"""More answers to one request (`n`) than this no provider gives."""
UNREASONED: Final = frozenset({None, "", "stop"})
"""Finish reasons that do not explain why there is no content."""


class Lane(enum.StrEnum):
    """Who waits for the answer: a person (`interactive`) or nobody (`batch`)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One chat request. `params` passes to the provider untouched (temperature, tools, max_tokens, …)."""

    id: str
    model: str
    messages: Sequence[Message]
    params: Mapping[str, Any] = {}
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    agent_id: str | None = None
    operation: ClassVar[str] = "chat"

    def __post_init__(self) -> None:
        if type(self.lane) is not Lane:
            msgspec.structs.force_setattr(self, "lane", read_lane(self.lane))


def read_lane(lane: Any) -> Lane:
    # Not `Lane(lane)`: its error quotes all of a text that may have 20 MB.
    for known in Lane:
        if lane == known:
            return known
    shown = lane[:LONGEST_SHOWN_CHARS] if isinstance(lane, str) else lane
    raise InvalidRequest(f"lane must be 'interactive' or 'batch', not {shown!r:.100}", param="lane")


class Usage(msgspec.Struct, frozen=True):
    """Tokens as the provider counted them; `estimated` when it did not say."""

    input_tokens: int
    output_tokens: int
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a provider answered to one request."""

    content: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    refusal: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def blank(self) -> bool:
        """No content, no tool call, no refusal, and no reason for it: the provider was paid for nothing.

        An answer that was cut off at its bound, or filtered, says so; asking again would only cost as much again.
        """
        if self.finish_reason not in UNREASONED:
            return False
        return not (self.tool_calls or self.refusal or (self.content and self.content.strip()))


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed answer. A piece without content (role, usage, finish) commits to nothing."""

    text: str = ""
    tool_calls: Sequence[Mapping[str, Any]] = ()
    refusal: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None

    @property
    def has_content(self) -> bool:
        return bool(self.text or self.tool_calls or self.refusal)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer with its story: which upstream gave it, after how many attempts and how long."""

    request_id: str
    model: str
    upstream: str
    content: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    refusal: str | None = None
    finish_reason: str | None = None
    usage: Usage
    attempts: int = 1
    latency_ms: float = 0.0
    queue_ms: float = 0.0
    replayed: bool = False
    """Told again under its idempotency key; nobody was asked for it this time."""


def check_request(request: Request) -> None:
    """Refuse what no provider could answer, before it takes a place in any queue."""
    check_text("request_id", request.id)
    check_text("tenant", request.tenant)
    check_text("model", request.model)
    if request.agent_id is not None:
        check_text("agent_id", request.agent_id)
    _check_messages(request.messages)


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID_CHARS or not value.isprintable():
        raise InvalidRequest(f"{name} must be 1–{LONGEST_ID_CHARS} printable characters", param=name)


def _check_messages(messages: object) -> None:
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise InvalidRequest("messages must be a list with at least one message", param="messages")
    chars = 0
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"messages[{index}] must be an object with a role, such as {{'role': 'user', 'content': '…'}}",
                param=f"messages[{index}]",
            )
        chars += _checked_chars(message.get("content"), index)
    if chars > LONGEST_TEXT_CHARS:
        raise InvalidRequest(
            f"messages hold {chars:,} characters of text; the most is {LONGEST_TEXT_CHARS:,}. Send less.",
            param="messages",
        )


def _checked_chars(content: object, index: int) -> int:
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content)
    if (
        not isinstance(content, bytes)
        and isinstance(content, Sequence)
        and all(isinstance(part, Mapping) for part in content)
    ):
        return sum(len(str(part.get("text", ""))) for part in content)
    raise InvalidRequest(
        f"messages[{index}].content must be text, a list of content parts, or null",
        param=f"messages[{index}].content",
    )


def estimate_usage(request: Request, output_text: str = "") -> Usage:
    """A guess from characters, for providers that do not count."""
    return Usage(_input_tokens(request), -(-len(output_text) // CHARS_PER_TOKEN), estimated=True)


def reserve_tokens(request: Request) -> int:
    """How many tokens to reserve before the call: the prompt, and the bound of each answer where there is one."""
    params = request.params
    choices = max(read_count(params.get("n")), read_count(params.get("best_of")))
    bound = max(read_count(params.get("max_completion_tokens")), read_count(params.get("max_tokens")))
    return _input_tokens(request) + output_tokens(bound, choices)


def output_tokens(bound: int, choices: int, prompts: int = 1) -> int:
    """How many to reserve for answers. 0 for what the request does not say."""
    answers = max(1, min(choices, MOST_CHOICES)) * max(1, prompts)
    return min((bound or EXPECTED_OUTPUT_TOKENS) * answers, MOST_OUTPUT_TOKENS)


def read_count(value: object) -> int:
    """A parameter as a count, 0 if it is none. Some servers take 128.0 and "128" for 128, so they count alike here."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    try:
        number = float(value)
    except OverflowError:
        return MOST_TOKENS
    except ValueError:
        return 0
    return int(min(number, MOST_TOKENS)) if number > 0 else 0


def _input_tokens(request: Request) -> int:
    chars = 0
    for message in request.messages:
        content = message.get("content")
        if isinstance(content, str):
            chars += len(content)
        elif content:
            chars += sum(len(str(part.get("text", ""))) for part in content)
    return -(-chars // CHARS_PER_TOKEN)
