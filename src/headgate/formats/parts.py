"""Reads the parts of messages in OpenAI's shapes: texts, images, tool calls, tools. Writes no format of its own.

A part that is not what it should be is refused by its place (`messages[2].tool_calls[0]`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headgate.core.call import Message
from headgate.formats.params import refused

SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_ALIASES: Final = {"image/jpg": "image/jpeg"}


class Embedded(NamedTuple):
    """What a data URL holds: base64 and what it is."""

    media_type: str
    base64: str


class ToolCall(NamedTuple):
    id: str
    name: str
    arguments: dict[str, Any]


class Function(NamedTuple):
    """A tool of the type `function`."""

    name: str
    description: str | None
    parameters: Mapping[str, Any]
    strict: bool


def parts_of(message: Message) -> Sequence[Mapping[str, Any]]:
    """The content as parts, whichever of its forms it has. Empty texts are nothing."""
    content = message.get("content")
    if content is None or content == "":
        return ()
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def text_of(part: Mapping[str, Any], where: str) -> str:
    text = part.get("refusal" if part.get("type") == "refusal" else "text")
    if not isinstance(text, str):
        raise refused(f"{where}.text", "must be a text")
    return text


def image_url_of(part: Mapping[str, Any], where: str) -> str:
    image = part.get("image_url")
    url = image.get("url") if isinstance(image, Mapping) else image
    if not isinstance(url, str) or not url:
        raise refused(f"{where}.image_url", "must hold a url")
    return url


def embedded(url: str, where: str) -> Embedded | None:
    """The content of a data URL; None for other URLs."""
    if url[:5].lower() != "data:":
        return None
    head, comma, data = url[5:].partition(",")
    media_type, *attributes = head.lower().split(";")
    if not comma or not data or "base64" not in attributes:
        raise refused(f"{where}.image_url", "is a data URL without base64: write data:image/png;base64,…")
    return Embedded(_ALIASES.get(media_type, media_type), data)


def tool_calls_of(message: Message, where: str) -> Iterator[ToolCall]:
    if message.get("function_call"):
        raise refused(f"{where}.function_call", "is the old form; write tool_calls")
    calls = message.get("tool_calls") or ()
    if not isinstance(calls, Sequence):
        raise refused(f"{where}.tool_calls", "must be a list")
    for index, call in enumerate(calls):
        yield _tool_call(call, f"{where}.tool_calls[{index}]")


def function_of(tool: Mapping[str, Any], where: str) -> Function | None:
    """A function among the tools; None for a tool of another type."""
    if tool.get("type", "function") != "function" or "function" not in tool:
        return None
    function = tool["function"]
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise refused(f"{where}.function", "must be an object with a name")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return Function(function["name"], function.get("description"), parameters, function.get("strict") is True)


def tools_of(params: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    tools = params.get("tools") or ()
    if not isinstance(tools, Sequence) or not all(isinstance(tool, Mapping) for tool in tools):
        raise refused("tools", "must be a list of objects")
    return tuple(tools)


def _tool_call(call: object, where: str) -> ToolCall:
    function = call.get("function") if isinstance(call, Mapping) else None
    if (
        not isinstance(call, Mapping)
        or not isinstance(function, Mapping)
        or not isinstance(function.get("name"), str)
    ):
        raise refused(where, "must be an object with a function and its name")
    return ToolCall(str(call.get("id") or ""), function["name"], _arguments(function.get("arguments"), where))


def _arguments(given: object, where: str) -> dict[str, Any]:
    """OpenAI writes arguments as a text that holds JSON; a model may have left it empty."""
    if isinstance(given, str):
        try:
            given = msgspec.json.decode(given) if given.strip() else {}
        except (msgspec.DecodeError, RecursionError):
            raise refused(f"{where}.function.arguments", "must be a text that holds a JSON object") from None
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise refused(f"{where}.function.arguments", "must be a text that holds a JSON object")
    return dict(given)


def add_turn(turns: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    """Roles take turns: what the same one says next joins what it said last."""
    if not blocks:
        return  # An assistant's turn without a word; a user's is refused before.
    if turns and turns[-1]["role"] == role:
        turns[-1]["content"].extend(blocks)
    else:
        turns.append({"role": role, "content": blocks})
