"""Messages in OpenAI's shapes as Converse's system blocks and turns.

System and developer messages are gathered in front, wherever they stood. Neighbours of one side become one turn,
because Converse wants them to alternate; the results of tools are the user's.

Dropped as harmless: blank text, blank answers of the assistant, a message's `name`, an image's `detail`, and what an
assistant's message holds besides its text and tool calls (reasoning, annotations).
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

_IMAGES: Final = {f"image/{name}": name for name in ("png", "jpeg", "gif", "webp")}
# Bedrock refuses blank text, and a tool may well have nothing to say.
_NO_OUTPUT: Final = "(no output)"


class Conversation(NamedTuple):
    system: list[Block]
    turns: list[dict[str, Any]]

    @property
    def uses_tools(self) -> bool:
        return any(
            "toolUse" in block or "toolResult" in block for turn in self.turns for block in turn["content"]
        )


def to_conversation(messages: Sequence[Message]) -> Conversation:
    conversation = Conversation([], [])
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        role = message["role"]
        if role in SYSTEM_ROLES:
            conversation.system.extend(_words(message, where))
        elif role == "user":
            add_turn(conversation.turns, "user", _said(message, where))
        elif role == "assistant":
            add_turn(conversation.turns, "assistant", [*_words(message, where), *_tool_uses(message, where)])
        elif role == "tool":
            add_turn(conversation.turns, "user", [_tool_result(message, where)])
        else:
            raise refused(
                f"{where}.role", f"is {role[:40]!r}: use system, developer, user, assistant or tool"
            )
    if not conversation.turns:
        raise refused("messages", "must hold at least one message of the user")
    return conversation


def _said(message: Message, where: str) -> list[Block]:
    blocks = _blocks(message, where)
    if not blocks:
        raise refused(f"{where}.content", "is blank, and bedrock takes no blank message")
    return blocks


def _words(message: Message, where: str) -> list[Block]:
    """Where only text may stand."""
    blocks = _blocks(message, where)
    if any("text" not in block for block in blocks):
        raise refused(f"{where}.content", "may hold nothing but text in this role")
    return blocks


def _blocks(message: Message, where: str) -> list[Block]:
    blocks = (_block(part, f"{where}.content[{index}]") for index, part in enumerate(parts_of(message)))
    return [block for block in blocks if "text" not in block or block["text"].strip()]


def _block(part: Mapping[str, Any], where: str) -> Block:
    kind = part.get("type")
    if kind in {"text", "refusal"}:
        return {"text": text_of(part, where)}
    if kind == "image_url":
        return _image(part, where)
    raise refused(where, f"is of type {str(kind)[:40]!r}; bedrock takes text and images in this form")


def _image(part: Mapping[str, Any], where: str) -> Block:
    data = embedded(image_url_of(part, where), where)
    if data is None or data.media_type not in _IMAGES:
        why = "must be a data URL of a PNG, JPEG, GIF or WebP: bedrock takes no others and fetches nothing"
        raise refused(f"{where}.image_url", why)
    return {"image": {"format": _IMAGES[data.media_type], "source": {"bytes": data.base64}}}


def _tool_uses(message: Message, where: str) -> list[Block]:
    return [
        {"toolUse": {"toolUseId": call.id, "name": call.name, "input": call.arguments}}
        for call in tool_calls_of(message, where)
    ]


def _tool_result(message: Message, where: str) -> Block:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str) or not call_id:
        raise refused(f"{where}.tool_call_id", "is missing: it says which call this is the result of")
    content = _blocks(message, where) or [{"text": _NO_OUTPUT}]
    return {"toolResult": {"toolUseId": call_id, "content": content}}
