"""Messages in OpenAI's shape, turned into Converse's system blocks and turns.

Neighbours of one role become one turn, because Converse wants them to alternate; tool results are the user's.
Passed over, because nothing is lost: blank text, blank answers of the assistant, the `name` of a speaker, and what
an assistant's message holds besides its text and tool calls (reasoning, annotations).
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from headgate.core.messages import Message
from headgate.providers.bedrock.faults import rejected

_DATA_URL: Final = re.compile(r"data:image/(png|jpe?g|gif|webp);base64,(.*)", re.IGNORECASE | re.DOTALL)
# Bedrock refuses blank text, and a tool may well have nothing to say.
_NO_OUTPUT: Final = "(no output)"

Block = dict[str, Any]
Turn = dict[str, Any]


class Conversation:
    """What Converse is told of the messages."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.system: list[Block] = []
        self.turns: list[Turn] = []
        self.uses_tools = False
        for index, message in enumerate(messages):
            self._add(f"messages[{index}]", message)
        if not self.turns:
            raise rejected("messages", "must hold at least one message of the user")

    def _add(self, path: str, message: Message) -> None:
        match message["role"]:
            case "system" | "developer":
                self.system += _texts(path, message.get("content"))
            case "user":
                blocks = _parts(f"{path}.content", message.get("content"))
                if not blocks:
                    raise rejected(f"{path}.content", "is blank, which Bedrock does not take")
                self._say("user", blocks)
            case "assistant":
                self._say("assistant", self._assistant(path, message))
            case "tool":
                self.uses_tools = True
                self._say("user", [_tool_result(path, message)])
            case role:
                raise rejected(f"{path}.role", f"{role[:40]!r} is none that Bedrock knows")

    def _say(self, role: str, blocks: list[Block]) -> None:
        if self.turns and self.turns[-1]["role"] == role:
            self.turns[-1]["content"] += blocks
        elif blocks:
            self.turns.append({"role": role, "content": blocks})

    def _assistant(self, path: str, message: Message) -> list[Block]:
        if message.get("function_call") is not None:
            raise rejected(f"{path}.function_call", "is outdated; use tool_calls")
        blocks = _texts(path, message.get("content") or message.get("refusal"))
        calls = message.get("tool_calls") or ()
        if isinstance(calls, str) or not isinstance(calls, Sequence):
            raise rejected(f"{path}.tool_calls", "must be a list")
        if calls:
            self.uses_tools = True
        return blocks + [_tool_use(f"{path}.tool_calls[{index}]", call) for index, call in enumerate(calls)]


def _texts(path: str, content: Any) -> list[Block]:
    """Where only text may stand."""
    blocks = _parts(f"{path}.content", content)
    if any("text" not in block for block in blocks):
        raise rejected(f"{path}.content", "may hold nothing but text in this role")
    return blocks


def _parts(path: str, content: Any) -> list[Block]:
    if content is None or isinstance(content, str):
        return _text(content)
    blocks: list[Block] = []
    for index, part in enumerate(content):
        blocks += _part(f"{path}[{index}]", part)
    return blocks


def _part(path: str, part: Mapping[str, Any]) -> list[Block]:
    match part:
        case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return _text(text)
        case {"type": "image_url", "image_url": {"url": str(url)} | str(url)}:
            return [_image(path, url)]
    raise rejected(
        path, f"of type {str(part.get('type'))[:40]!r} cannot be sent to Bedrock; text and images can"
    )


def _text(text: str | None) -> list[Block]:
    return [{"text": text}] if text and text.strip() else []


def _image(path: str, url: str) -> Block:
    found = _DATA_URL.fullmatch(url)
    if found is None:
        why = "must be a data URL of a PNG, JPEG, GIF or WebP in base64: Bedrock fetches no images"
        raise rejected(f"{path}.image_url", why)
    kind, data = found[1].lower(), found[2]
    try:
        # Bedrock takes the same base64 that came, so a look is enough.
        size_bytes = len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        size_bytes = 0
    if not size_bytes:
        raise rejected(f"{path}.image_url", "holds no base64 that can be read")
    return {"image": {"format": "jpeg" if kind == "jpg" else kind, "source": {"bytes": data}}}


def _tool_use(path: str, call: Any) -> Block:
    match call:
        case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
            return {"toolUse": {"toolUseId": call_id, "name": name, "input": _arguments(path, arguments)}}
    raise rejected(path, "must hold an id and a function with its name and arguments")


def _arguments(path: str, arguments: str) -> dict[str, Any]:
    try:
        read = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        read = None
    if not isinstance(read, dict):
        raise rejected(f"{path}.function.arguments", "must be a JSON object")
    return read


def _tool_result(path: str, message: Message) -> Block:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise rejected(f"{path}.tool_call_id", "is missing: which call is this the result of?")
    content = _parts(f"{path}.content", message.get("content")) or [{"text": _NO_OUTPUT}]
    return {"toolResult": {"toolUseId": call_id, "content": content}}
