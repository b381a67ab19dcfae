"""What every provider is asked to go through: the parts an upstream can play, and the stage they play on.

An author of a provider writes a stub that plays these parts in its own wire format, and adds one entry to the table
in `test_providers.py`.
"""

import enum
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Protocol, Self

from providers.stubs.scripted import ScriptedServer

from headgate.core.answer import Chunk
from headgate.core.ports.provider import Provider
from headgate.core.timeouts import Timeouts
from headgate.transport import Transport

WORDS: Final = ("All ", "is ", "well — ", "wirklich.")
"""The pieces of the text that a stub answers with; whole answers are all of them together."""
SAID: Final = "".join(WORDS)
QUESTION: Final = "How is it?"
RETRY_AFTER_S: Final = 7.0
KEY: Final = "sk-contract-0123456789-very-secret"
"""The credential that every provider under test is given, where its wire format has one."""
VECTORS: Final = ((1.0, 0.0, 0.5), (0.0, -1.0, 0.25))
"""The embeddings of `TEXTS`."""
TEXTS: Final = ("first", "second")
TOOL_CALL: Final[Mapping[str, Any]] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "Köln"}'},
}
THOUGHT: Final = "Let me see…"
CACHED_TOKENS: Final = 8
TIMEOUTS: Final = Timeouts(connect_s=2, first_token_s=5, idle_s=5, total_s=20)


class Part(enum.Enum):
    """How the upstream behaves, for every request it gets."""

    ANSWER = "a whole answer that says `SAID`, with usage, finished by itself (`stop`)"
    EXTRAS = "a whole answer that says `SAID`, with the extras that the troupe lists"
    BLANK = "a whole answer without any content"
    STREAM = "a stream of `WORDS`, with usage, finished by itself (`stop`)"
    EMBEDDINGS = "`VECTORS`, with usage"
    THROTTLED = "429 or its like, with `RETRY_AFTER_S`; the text quotes `KEY`"
    OVERLOADED = "503 or its like; the text quotes `KEY`"
    UNAUTHORISED = "401 or its like; the text quotes `KEY`"
    REJECTED = "400 or its like; the text quotes `KEY`"
    UNKNOWN_MODEL = "what the provider says when it does not have the model"
    HTML = "200 with a web page, as a captive portal or a wrong base URL sends it"
    CUT_BODY = "200, and the connection ends within the body of a whole answer"
    CUT_STREAM = "the first of `WORDS` as a stream, then the connection ends"
    SHORT_STREAM = (
        "the first of `WORDS` as a stream, then a clean end of the body without the format's end marker"
    )
    FAILING_STREAM = "the first of `WORDS` as a stream, then an error event for a passing trouble"
    SILENT = "takes the request and never sends a byte"
    STALLING_STREAM = "the first of `WORDS` as a stream, then nothing more"


class Extra(enum.Enum):
    """What a whole answer may hold beside its text."""

    CHOICES = "a second choice that says `SAID`, too"
    LOGPROBS = "log probabilities"
    TOOL_CALLS = "`TOOL_CALL`; its id may differ"
    REASONING = "`THOUGHT`, as the model's reasoning"
    USAGE_DETAILS = "`CACHED_TOKENS` of the input"


class Stub(Protocol):
    """An upstream on the loopback that plays one part. Counts requests and hang-ups."""

    @property
    def calls(self) -> int:
        """Requests that arrived."""
        ...

    @property
    def hang_ups(self) -> int:
        """Connections that the provider closed before their answer was over."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ScriptedStub(ScriptedServer):
    """The scripted server as a stub: a provider that uses it only says which reply plays which part."""

    @property
    def calls(self) -> int:
        return len(self.requests)

    @property
    def hang_ups(self) -> int:
        return int(self.left.is_set())


@dataclass(frozen=True, kw_only=True)
class Troupe:
    """One provider in front of its stub: how both are made, and the parts that its format does not know."""

    make_stub: Callable[[Part], Stub]
    make_provider: Callable[[Stub, Transport], Provider]
    """Given `KEY` and `TIMEOUTS`."""
    cannot: frozenset[Part] = field(default_factory=frozenset)
    extras: frozenset[Extra] = field(default_factory=frozenset)
    """In the answer of `Part.EXTRAS`, which is not played where there are none."""
    extras_body: bytes | None = None
    """The body of that answer, for a provider that passes bodies on as they are."""

    def plays(self, part: Part) -> bool:
        return part not in self.cannot and (part is not Part.EXTRAS or bool(self.extras))


@dataclass(frozen=True)
class Scene:
    provider: Provider
    stub: Stub
    transport: Transport


@asynccontextmanager
async def scene(troupe: Troupe, part: Part) -> AsyncIterator[Scene]:
    transport = Transport()
    try:
        async with troupe.make_stub(part) as stub:
            provider = troupe.make_provider(stub, transport)
            yield Scene(provider, stub, transport)
            await provider.aclose()
    finally:
        await transport.aclose()


async def read(chunks: AsyncIterator[Chunk], into: list[Chunk]) -> None:
    """Chunks into a list that survives a failure on the way."""
    async for chunk in chunks:
        into.append(chunk)  # noqa: PERF401 - a comprehension would keep nothing of a stream that fails
