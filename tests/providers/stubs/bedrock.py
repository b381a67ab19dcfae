"""A Bedrock on loopback: speaks its JSON and its binary event streams, and checks every request as AWS would.

Signatures are computed anew by botocore from what came over the wire; bodies of Converse are checked against
botocore's model of the service. `tests/providers/test_bedrock_stub.py` proves it with the real client.
"""

import asyncio
import binascii
import contextlib
import functools
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Self

import botocore.session  # type: ignore[import-untyped]
from botocore.auth import SigV4Auth  # type: ignore[import-untyped]
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]
from botocore.credentials import Credentials  # type: ignore[import-untyped]
from botocore.validate import ParamValidator  # type: ignore[import-untyped]
from contracts.provider_stage import (
    CACHED_TOKENS,
    KEY,
    RETRY_AFTER_S,
    SAID,
    THOUGHT,
    TIMEOUTS,
    TOOL_CALL,
    VECTORS,
    WORDS,
    Extra,
    Part,
    Stub,
    Troupe,
)

from headgate.core.ports.provider import Provider
from headgate.providers.bedrock import BedrockOptions, BedrockProvider
from headgate.transport import Transport

KEY_ID = "AKIATESTTESTTESTTEST"
SECRET = "wJalrXUtnFEMI+K7MDENG/bPxRfiCYEXAMPLEKEY"
TOKEN = "FwoGZXIvYXdzEXAMPLETOKEN//////////wEaDK=="
REGION = "us-east-1"
EVENT_STREAM = "application/vnd.amazon.eventstream"
Ending = Literal["end", "cut", "hold", "silent"]


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One scripted answer. `hold` falls silent until the client leaves, `silent` says nothing at all;
    `cut` drops the connection."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    body: bytes = b""
    chunked: bool = False
    piece_bytes: int = 1 << 20
    ending: Ending = "end"


@dataclass(frozen=True)
class Seen:
    """One request as it came."""

    target: str
    headers: Mapping[str, str]
    body: Any


def whole(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(
        status=status,
        headers={"Content-Type": "application/json", **(headers or {})},
        body=json.dumps(body).encode(),
    )


def said(*blocks: Mapping[str, Any], stop: str = "end_turn", usage: Mapping[str, int] | None = None) -> Reply:
    """A whole answer of Converse."""
    return whole(
        {
            "output": {"message": {"role": "assistant", "content": list(blocks)}},
            "stopReason": stop,
            "usage": usage or {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18},
            "metrics": {"latencyMs": 5},
        }
    )


def refusal(status: int, code: str, message: str, **headers: str) -> Reply:
    """An error as Bedrock sends it: the code in a header, with an address behind it."""
    address = ":http://internal.amazon.com/coral/com.amazon.bedrock/"
    told = {name.replace("_", "-"): value for name, value in headers.items()}
    return whole({"message": message}, status=status, headers={"x-amzn-ErrorType": code + address, **told})


def events(*frames: bytes, piece_bytes: int = 1 << 20, ending: Ending = "end") -> Reply:
    return Reply(
        headers={"Content-Type": EVENT_STREAM},
        body=b"".join(frames),
        chunked=True,
        piece_bytes=piece_bytes,
        ending=ending,
    )


def event(kind: str, payload: Mapping[str, Any]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps(payload).encode())


def exception(kind: str, message: str) -> bytes:
    headers = {":exception-type": kind, ":content-type": "application/json", ":message-type": "exception"}
    return frame(headers, json.dumps({"message": message}).encode())


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Lengths and their checksum, headers of type string (7), the payload, the checksum of it all."""
    block = b"".join(
        struct.pack("!B", len(name))
        + name.encode()
        + struct.pack("!BH", 7, len(value.encode()))
        + value.encode()
        for name, value in headers.items()
    )
    lengths = struct.pack("!II", 12 + len(block) + len(payload) + 4, len(block))
    message = lengths + struct.pack("!I", binascii.crc32(lengths)) + block + payload
    return message + struct.pack("!I", binascii.crc32(message))


def text_events(*texts: str, stop: str = "end_turn") -> list[bytes]:
    """A plain streamed answer, from `messageStart` to `metadata`."""
    deltas = [event("contentBlockDelta", {"delta": {"text": text}, "contentBlockIndex": 0}) for text in texts]
    usage = {"inputTokens": 11, "outputTokens": 7, "totalTokens": 18}
    return [
        event("messageStart", {"role": "assistant", "p": "abcdefgh"}),
        *deltas,
        event("contentBlockStop", {"contentBlockIndex": 0}),
        event("messageStop", {"stopReason": stop}),
        event("metadata", {"usage": usage, "metrics": {"latencyMs": 5}}),
    ]


class BedrockStub:
    """Answers requests with its script, in order; the last reply again and again."""

    def __init__(self, *replies: Reply, secret: str = SECRET) -> None:
        self._script = list(replies)
        self._secret = secret
        self.seen: list[Seen] = []
        self.problems: list[str] = []
        """What was wrong with bodies of Converse."""
        self.connections = 0
        self.hang_ups = 0
        self.asked = asyncio.Event()
        self.left = asyncio.Event()
        """A client closed its connection before its answer was over."""

    @property
    def calls(self) -> int:
        return len(self.seen)

    async def __aenter__(self) -> Self:
        _converse_input()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        start, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        method, target, _ = start.split(" ")
        told = json.loads(body) if body else None
        self.seen.append(Seen(target, headers, told))
        self.asked.set()
        refused = self._check_signature(method, target, headers, body) or self._check_body(target, told)
        return await self._answer(refused or self._next(), reader, writer)

    async def _answer(self, reply: Reply, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if reply.ending != "silent":
            await _send(reply, writer)
        if reply.ending in {"hold", "silent"}:
            await reader.read()
            self.hang_ups += 1
            self.left.set()
        return reply.ending == "end"

    def _next(self) -> Reply:
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]

    def _check_signature(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> Reply | None:
        scheme, *fields = headers["authorization"].replace(", ", " ").split(" ")
        given = dict(part.split("=", 1) for part in fields)
        signed = given["SignedHeaders"].split(";")
        request = AWSRequest(
            method, f"http://{headers['host']}{target}", {n: headers[n] for n in signed}, body
        )
        request.context["timestamp"] = headers["x-amz-date"]
        signer = SigV4Auth(Credentials(KEY_ID, self._secret), "bedrock", REGION)
        expected = signer.signature(
            signer.string_to_sign(request, signer.canonical_request(request)), request
        )
        must = {"host", "x-amz-date", *(name for name in headers if name.startswith("x-amz-"))}
        right = given == {
            "Credential": signer.scope(request),
            "SignedHeaders": ";".join(signed),
            "Signature": expected,
        }
        if scheme == "AWS4-HMAC-SHA256" and right and must <= set(signed):
            return None
        # The real service quotes what it would have signed, session token and all.
        quoted = f"The Canonical String should have been {signer.canonical_request(request)!r} {headers['authorization']}"
        return refusal(403, "InvalidSignatureException", f"The request signature does not match. {quoted}")

    def _check_body(self, target: str, body: Any) -> Reply | None:
        if not target.endswith(("/converse", "/converse-stream")):
            return None
        report = ParamValidator().validate({"modelId": "m", **body}, _converse_input())
        if not report.has_errors():
            return None
        self.problems.append(report.generate_report())
        return refusal(400, "ValidationException", self.problems[-1])


async def _send(reply: Reply, writer: asyncio.StreamWriter) -> None:
    framing = {"Transfer-Encoding": "chunked"} if reply.chunked else {"Content-Length": _length(reply)}
    lines = "".join(f"{name}: {value}\r\n" for name, value in {**reply.headers, **framing}.items())
    writer.write(f"HTTP/1.1 {reply.status} x\r\n{lines}\r\n".encode("latin-1"))
    for start in range(0, len(reply.body), reply.piece_bytes):
        piece = reply.body[start : start + reply.piece_bytes]
        writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece)
        await writer.drain()
    if reply.ending == "end" and reply.chunked:
        writer.write(b"0\r\n\r\n")


def _length(reply: Reply) -> str:
    return str(len(reply.body) + (0 if reply.ending == "end" else 1000))


@functools.cache
def _converse_input() -> Any:
    return (
        botocore.session.Session()
        .get_service_model("bedrock-runtime")
        .operation_model("Converse")
        .input_shape
    )


# --- The parts that every provider's stub plays ---

_EMBEDDING_MODEL: Final = "cohere.embed-english-v3"
_OPENING: Final = text_events(*WORDS)[:2]
_CALLED: Final = TOOL_CALL["function"]
_EXTRAS: Final[Sequence[Mapping[str, Any]]] = (
    {"reasoningContent": {"reasoningText": {"text": THOUGHT, "signature": "c2lnbmVk"}}},
    {"text": SAID},
    {
        "toolUse": {
            "toolUseId": "tooluse_1",
            "name": _CALLED["name"],
            "input": json.loads(_CALLED["arguments"]),
        }
    },
)
_CACHED_USAGE: Final = {
    "inputTokens": 11,
    "outputTokens": 7,
    "totalTokens": 18 + CACHED_TOKENS,
    "cacheReadInputTokens": CACHED_TOKENS,
}

_PARTS: Final[Mapping[Part, Callable[[], Reply]]] = {
    Part.ANSWER: lambda: said({"text": SAID}),
    Part.EXTRAS: lambda: said(*_EXTRAS, usage=_CACHED_USAGE),
    Part.BLANK: said,
    Part.STREAM: lambda: events(*text_events(*WORDS)),
    Part.EMBEDDINGS: lambda: whole(
        {"embeddings": VECTORS}, headers={"X-Amzn-Bedrock-Input-Token-Count": "2"}
    ),
    Part.THROTTLED: lambda: refusal(
        429, "ThrottlingException", f"{KEY}: too many tokens", Retry_After=f"{RETRY_AFTER_S:g}"
    ),
    Part.OVERLOADED: lambda: refusal(503, "ServiceUnavailableException", f"{KEY}: try again"),
    Part.UNAUTHORISED: lambda: refusal(403, "UnrecognizedClientException", f"{KEY} is invalid"),
    Part.REJECTED: lambda: refusal(400, "ValidationException", f"{KEY}: messages are too long"),
    Part.UNKNOWN_MODEL: lambda: refusal(
        400, "ValidationException", "The provided model identifier is invalid."
    ),
    Part.HTML: lambda: Reply(headers={"Content-Type": "text/html"}, body=b"<html><h1>Log in</h1></html>"),
    Part.CUT_BODY: lambda: Reply(body=b'{"output": {"mess', ending="cut"),
    Part.CUT_STREAM: lambda: events(*_OPENING, ending="cut"),
    Part.SHORT_STREAM: lambda: events(*_OPENING),
    Part.FAILING_STREAM: lambda: events(*_OPENING, exception("modelStreamErrorException", "try again")),
    Part.SILENT: lambda: Reply(ending="silent"),
    Part.STALLING_STREAM: lambda: events(*_OPENING, ending="hold"),
}


class _PlayingStub(BedrockStub):
    def __init__(self, part: Part) -> None:
        super().__init__(_PARTS[part](), secret=KEY)
        self.model = _EMBEDDING_MODEL if part is Part.EMBEDDINGS else "amazon.nova-lite-v1:0"


def _make_provider(stub: Stub, transport: Transport) -> Provider:
    assert isinstance(stub, _PlayingStub)
    options = BedrockOptions(region=REGION, base_url=stub.url, access_key_id=KEY_ID, secret_access_key=KEY)
    return BedrockProvider(options, model=stub.model, transport=transport, timeouts=TIMEOUTS)


TROUPE: Final = Troupe(
    make_stub=_PlayingStub,
    make_provider=_make_provider,
    extras=frozenset({Extra.TOOL_CALLS, Extra.REASONING, Extra.USAGE_DETAILS}),
)
