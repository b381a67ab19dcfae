"""What is asked of a model: one call, in whatever format its caller uses. Knows nothing of providers, gates or HTTP."""

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.core.errors import InvalidRequest

Message = Mapping[str, Any]

# About a million tokens: beyond every context window. Images and other parts are not text and not counted.
MAX_TEXT_CHARS: Final = 4_000_000
MAX_ID_CHARS: Final = 255
MAX_SHOWN_CHARS: Final = 60
"""Of a wrong value that an error quotes."""
MAX_TEXTS: Final = 2048
"""To be embedded in one call."""
CHARS_PER_TOKEN: Final = 4
EXPECTED_OUTPUT_TOKENS: Final = 256
MAX_OUTPUT_TOKENS: Final = 10_000_000
MAX_TOKENS: Final = 100_000_000
"""More than any call can use. A larger count is an error, and limits, prices and metrics are made of such counts."""
MAX_CHOICES: Final = 1000
"""No provider gives more answers to one request (`n`)."""
_MAX_NUMBER_CHARS: Final = 100
_SEVERAL: Final = re.compile(rb'\s*\[\s*["\[]')
_read_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


class Lane(enum.StrEnum):
    """Whether a client waits for the answer (`interactive`) or not (`batch`)."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


class Format(enum.StrEnum):
    """The shape of a request and its answer, by its path below the version in OpenAI's API. `CHAT` is the hub."""

    CHAT = "chat/completions"
    COMPLETIONS = "completions"
    EMBEDDINGS = "embeddings"


OPERATIONS: Final[Mapping[Format, str]] = {
    Format.CHAT: "chat",
    Format.COMPLETIONS: "text_completion",
    Format.EMBEDDINGS: "embeddings",
}


class Call(msgspec.Struct, kw_only=True, eq=False):
    """One request to a model. `fields` is the body without `model` and `stream`.

    A field is `msgspec.Raw`, JSON as it came, or a value of the library's caller. What Headgate does not know
    reaches the provider untouched.
    """

    id: str
    model: str
    """The public name; a provider knows its own."""
    format: Format = Format.CHAT
    fields: Mapping[str, Any]
    size_bytes: int = 0
    """Of the body as it came; 0 when it did not come as bytes."""
    stream: bool = False
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    agent_id: str | None = None
    waits: bool = True
    """Waits while its upstreams are closed; else it is rejected at once."""
    created: float = 0.0
    """Epoch seconds, for answers that are written here."""
    read: Any = None
    """The request as its format's reader understood it, once a provider needed that."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One of many chat requests, as library users hand them to `complete_many`."""

    id: str
    model: str
    messages: Sequence[Message]
    params: Mapping[str, Any] = {}
    """Passed to the provider untouched (temperature, tools, max_tokens, …)."""
    lane: Lane = Lane.INTERACTIVE
    tenant: str = "local"
    agent_id: str | None = None

    def __post_init__(self) -> None:
        if type(self.lane) is not Lane:
            msgspec.structs.force_setattr(self, "lane", read_lane(self.lane))


def read_lane(lane: Any) -> Lane:
    # Not `Lane(lane)`: its error quotes all of a text that may have 20 MB.
    for known in Lane:
        if lane == known:
            return known
    shown = lane[:MAX_SHOWN_CHARS] if isinstance(lane, str) else lane
    raise InvalidRequest(f"lane must be 'interactive' or 'batch', not {shown!r:.100}", param="lane")


# ---- Checks: what no provider could answer takes no place in a queue ----------------------------------------


def check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_CHARS or not value.isprintable():
        raise InvalidRequest(f"{name} must be 1–{MAX_ID_CHARS} printable characters", param=name)


def check_names(request_id: object, model: object, tenant: object, agent_id: object) -> None:
    """The names that a library user chose."""
    check_text("request_id", request_id)
    check_text("tenant", tenant)
    check_text("model", model)
    if agent_id is not None:
        check_text("agent_id", agent_id)


def check_messages(messages: object) -> None:
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
    if chars > MAX_TEXT_CHARS:
        raise InvalidRequest(
            f"messages hold {chars:,} characters of text; the most is {MAX_TEXT_CHARS:,}. Send less.",
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


def read_texts(given: object) -> tuple[str, ...]:
    """The `input` of embeddings, one text or a list of them, checked."""
    if isinstance(given, str):
        given = (given,)
    if isinstance(given, bytes | bytearray | Mapping) or not isinstance(given, Sequence):
        raise InvalidRequest("input must be a text or a list of texts", param="input")
    if not given:
        raise InvalidRequest("input must hold at least one text", param="input")
    if len(given) > MAX_TEXTS:
        raise InvalidRequest(
            f"input holds {len(given):,} texts; the most is {MAX_TEXTS:,}. Send several requests.",
            param="input",
        )
    for index, text in enumerate(given):
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"input[{index}] must be a text that is not empty", param=f"input[{index}]")
    chars = sum(map(len, given))
    if chars > MAX_TEXT_CHARS:
        raise InvalidRequest(
            f"input holds {chars:,} characters; the most is {MAX_TEXT_CHARS:,}. Send less.", param="input"
        )
    return tuple(given)


# ---- Tokens, before a provider has counted them -------------------------------------------------------------


def input_tokens(call: Call) -> int:
    """A guess: from the bytes of a body as it came, else from the characters of what is asked."""
    if call.size_bytes:
        return -(-call.size_bytes // CHARS_PER_TOKEN)
    if call.format is Format.EMBEDDINGS:
        texts = call.fields.get("input", ())
        return sum(
            -(-len(text) // CHARS_PER_TOKEN) for text in ((texts,) if isinstance(texts, str) else texts)
        )
    return -(-sum(map(_chars, call.fields.get("messages", ()))) // CHARS_PER_TOKEN)


def reserved_tokens(call: Call) -> int:
    """How many tokens to reserve before the call: what is asked, and the bound of each answer where there is one."""
    asked = -(-call.size_bytes // CHARS_PER_TOKEN) if call.size_bytes else input_tokens(call)
    if call.format is Format.EMBEDDINGS:
        return asked
    fields = call.fields
    choices = bound = 0
    # Which of two names a server obeys is not known here, so the larger number counts.
    for name in ("n", "best_of"):
        if name in fields:
            choices = max(choices, read_count(fields[name]))
    for name in ("max_completion_tokens", "max_tokens"):
        if name in fields:
            bound = max(bound, read_count(fields[name]))
    prompts = count_entries(fields["prompt"]) if "prompt" in fields else 1
    answers = max(1, min(choices, MAX_CHOICES)) * max(1, prompts)
    return asked + min((bound or EXPECTED_OUTPUT_TOKENS) * answers, MAX_OUTPUT_TOKENS)


def read_count(value: object) -> int:
    """A parameter as a count, 0 if it is none. Some servers take 128.0 and "128" for 128, so they count alike here."""
    if isinstance(value, msgspec.Raw):
        # A number that is too long to be read quickly is as large as can be.
        if len(value) > _MAX_NUMBER_CHARS:
            return MAX_TOKENS
        try:
            value = msgspec.json.decode(value)
        except msgspec.MsgspecError:
            return MAX_TOKENS
    if value is None or isinstance(value, bool) or not isinstance(value, int | float | str):
        return 0
    try:
        number = float(value)
    except OverflowError:
        return MAX_TOKENS
    except ValueError:
        return 0
    return int(min(number, MAX_TOKENS)) if number > 0 else 0


def count_entries(value: object) -> int:
    """How many prompts or inputs: each text or list of tokens in a list is answered apart; a list of numbers is one."""
    if isinstance(value, msgspec.Raw):
        return len(_read_list(value)) if _SEVERAL.match(value) is not None else 1
    if isinstance(value, str) or not isinstance(value, Sequence):
        return 1
    return 1 if value and isinstance(value[0], int) else len(value)


def _chars(message: Message) -> int:
    content = message.get("content")
    if isinstance(content, str):
        return len(content)
    return sum(len(str(part.get("text", ""))) for part in content) if content else 0
