"""Messages in OpenAI's shapes as Anthropic's system blocks and turns of content blocks.

System and developer messages are gathered in front, wherever they stood: Anthropic has one place for them. Turns of
the same side become one, so that all results of parallel tool calls stand together, as Anthropic demands. Parts of a
type OpenAI does not have (`document`, `thinking`, …) are taken for Anthropic's own and passed untouched.

Dropped as harmless: a message's `name`, an image's `detail`, empty texts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from headgate.core.messages import Message
from headgate.providers.params import refused
from headgate.providers.parts import (
    SYSTEM_ROLES,
    add_turn,
    embedded,
    image_url_of,
    parts_of,
    text_of,
    tool_calls_of,
)

Block = dict[str, Any]
_FOREIGN_PARTS: Final = frozenset({"input_audio", "file", "video_url"})


class Conversation(NamedTuple):
    system: list[Block]
    turns: list[dict[str, Any]]


def to_conversation(messages: Sequence[Message]) -> Conversation:
    conversation = Conversation([], [])
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message["role"]
        if role in SYSTEM_ROLES:
            conversation.system.extend(_blocks(message, where))
        elif role == "user":
            add_turn(conversation.turns, "user", _said(message, where))
        elif role == "assistant":
            add_turn(conversation.turns, "assistant", [*_blocks(message, where), *_tool_uses(message, where)])
        elif role == "tool":
            add_turn(conversation.turns, "user", [_tool_result(message, where)])
        else:
            raise refused(
                f"{where}.role", f"is {role[:40]!r}: use system, developer, user, assistant or tool"
            )
    return conversation


def _said(message: Message, where: str) -> list[Block]:
    blocks = _blocks(message, where)
    if not blocks:
        raise refused(f"{where}.content", "is empty; anthropic takes no empty message")
    return blocks


def _blocks(message: Message, where: str) -> list[Block]:
    blocks = (_block(part, f"{where}.content[{index}]") for index, part in enumerate(parts_of(message)))
    return [block for block in blocks if block.get("text") != ""]


def _block(part: Mapping[str, Any], where: str) -> Block:
    kind = part.get("type")
    if kind == "text":
        return {**part, "text": text_of(part, where)}
    if kind == "refusal":
        return {"type": "text", "text": text_of(part, where)}
    if kind == "image_url":
        return _image(part, where)
    if kind in _FOREIGN_PARTS:
        raise refused(where, f"is of type {kind}, which anthropic does not take in this form")
    return dict(part)


def _image(part: Mapping[str, Any], where: str) -> Block:
    url = image_url_of(part, where)
    data = embedded(url, where)
    source = (
        {"type": "url", "url": url}
        if data is None
        else {"type": "base64", "media_type": data.media_type, "data": data.base64}
    )
    kept = {"cache_control": part["cache_control"]} if "cache_control" in part else {}
    return {"type": "image", "source": source, **kept}


def _tool_uses(message: Message, where: str) -> list[Block]:
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
        for call in tool_calls_of(message, where)
    ]


def _tool_result(message: Message, where: str) -> Block:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise refused(f"{where}.tool_call_id", "is missing: it says which call this is the result of")
    result: Block = {"type": "tool_result", "tool_use_id": call_id}
    content = message.get("content")
    if isinstance(content, str):
        return {**result, "content": content}
    blocks = _blocks(message, where)
    return {**result, "content": blocks} if blocks else result
