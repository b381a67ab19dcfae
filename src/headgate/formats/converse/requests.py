"""A chat request as the body of Converse and ConverseStream.

Parameters with the name of a field of Converse (`guardrailConfig`, …) are kept as they are. What is neither
translated nor refused nor harmless is the model's own (`top_k`, `thinking`, `reasoning_effort`, …) and goes to it in
`additionalModelRequestFields`. Dropped as harmless: what `params.HARMLESS` lists, and names of end users.

System and developer messages are gathered in front, wherever they were. Neighbours of one role become one turn,
because Converse wants them to alternate; the results of tools are the user's. Thinking blocks come first in their
message. Dropped as harmless: blank text, messages of the assistant without text or tool calls (with their thoughts:
Bedrock takes thoughts for the beginning of an answer when nothing follows), thoughts without a signature (Bedrock
takes back no others), a message's `name`, an image's `detail`, annotations.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from headgate.core.call import Message
from headgate.formats.chat import ChatRequest
from headgate.formats.params import HARMLESS, UNTRANSLATED, Neutral, refused, sift
from headgate.formats.parts import (
    SYSTEM_ROLES,
    add_turn,
    embedded,
    function_of,
    image_url_of,
    parts_of,
    text_of,
    tool_calls_of,
    tools_of,
)

Body = dict[str, Any]
Block = dict[str, Any]

ADDITIONAL: Final = "additionalModelRequestFields"
CONVERSE_FIELDS: Final = frozenset(
    {
        "additionalModelResponseFieldPaths",
        "guardrailConfig",
        "outputConfig",
        "performanceConfig",
        "promptVariables",
        "requestMetadata",
        "serviceTier",
    }
)
_HARMLESS: Final = HARMLESS | {"user", "safety_identifier"}
_UNTRANSLATED: Final[Mapping[str, Neutral]] = {
    **UNTRANSLATED,
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (),
    "parallel_tool_calls": (True,),
}
_INFERENCE: Final[Mapping[str, str]] = {
    "max_tokens": "maxTokens",
    "max_completion_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
}
_IMAGES: Final = {f"image/{name}": name for name in ("png", "jpeg", "gif", "webp")}
# Bedrock refuses blank text, and a tool may well have nothing to say.
_NO_OUTPUT: Final = "(no output)"
# Converse refuses earlier tool calls without any tool, and it has no "none": a tool that does nothing replaces them.
_PLACEHOLDER: Final = {
    "toolSpec": {
        "name": "no_tools_now",
        "description": "There are no tools any more. Never call this; answer in words.",
        "inputSchema": {"json": {"type": "object", "properties": {}}},
    }
}


def to_body(request: ChatRequest, additional_fields: Mapping[str, Any]) -> Body:
    """Raises a rejected `ProviderFailure` that names what Converse's format cannot say."""
    params = sift(request.params, provider="bedrock", harmless=_HARMLESS, untranslated=_UNTRANSLATED)
    conversation = to_conversation(request.messages)
    body: Body = {"messages": conversation.turns}
    if conversation.system:
        body["system"] = conversation.system
    if config := tool_config(params, used_before=conversation.uses_tools):
        body["toolConfig"] = config
    for name in ("tools", "tool_choice"):
        params.pop(name, None)
    body |= _inference(params) | _format(params) | _services(params)
    body |= {name: params.pop(name) for name in CONVERSE_FIELDS & params.keys()}
    return body | _additional(params, additional_fields)


def encoded(body: Body) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError):
        raise refused("the request", "holds what JSON cannot carry") from None


# ---- Parameters ---------------------------------------------------------------------------------------------------


def _inference(params: Body) -> Body:
    config = {theirs: params.pop(name) for name, theirs in _INFERENCE.items() if name in params}
    stop = params.pop("stop", None)
    if stop:
        config["stopSequences"] = [stop] if isinstance(stop, str) else stop
    return {"inferenceConfig": config} if config else {}


def _format(params: Body) -> Body:
    match params.pop("response_format", None):
        case None | {"type": "text"}:
            return {}
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)} as given}:
            # Converse wants the schema as a text.
            named = {name: given[name] for name in ("name", "description") if given.get(name)}
            structure = {"jsonSchema": {"schema": encoded(schema).decode(), **named}}
            return {"outputConfig": {"textFormat": {"type": "json_schema", "structure": structure}}}
    raise refused("response_format", "must be text, or json_schema with a schema: bedrock knows no others")


def _services(params: Body) -> Body:
    services: Body = {}
    tier = params.pop("service_tier", "auto")
    if tier != "auto":
        services["serviceTier"] = {"type": tier}
    if metadata := params.pop("metadata", None):
        services["requestMetadata"] = metadata
    return services


def _additional(params: Body, from_options: Mapping[str, Any]) -> Body:
    own = params.pop(ADDITIONAL, {})
    if not isinstance(own, Mapping):
        raise refused(ADDITIONAL, "must be an object")
    fields = {**from_options, **params, **own}
    return {ADDITIONAL: fields} if fields else {}


# ---- Tools, and the choice among them -----------------------------------------------------------------------------


def tool_config(params: Mapping[str, Any], *, used_before: bool) -> Body | None:
    """`used_before`: the messages hold tool calls or results."""
    specs = [_spec(tool, f"tools[{index}]") for index, tool in enumerate(tools_of(params))]
    choice = params.get("tool_choice")
    picked = _picked(choice)
    if picked and not specs:
        raise refused("tool_choice", "asks for a tool, but there are no tools")
    if not specs or choice == "none":
        return {"tools": [_PLACEHOLDER]} if used_before else None
    return {"tools": specs, "toolChoice": picked} if picked else {"tools": specs}


def _spec(tool: Mapping[str, Any], where: str) -> Body:
    function = function_of(tool, where)
    if function is None:
        raise refused(where, "is no function, and bedrock takes no other tools")
    spec: Body = {"name": function.name, "inputSchema": {"json": function.parameters}}
    if function.description:
        spec["description"] = function.description
    if function.strict:
        spec["strict"] = True
    return {"toolSpec": spec}


def _picked(choice: object) -> Body | None:
    """None where the model decides by itself: Converse's default."""
    match choice:
        case None | "auto" | "none":
            return None
        case "required":
            return {"any": {}}
        case {"type": "function", "function": {"name": str(name)}}:
            return {"tool": {"name": name}}
    raise refused("tool_choice", "must be auto, none, required or a function by its name")


# ---- Messages -----------------------------------------------------------------------------------------------------


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
            add_turn(conversation.turns, "assistant", _answered(message, where))
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


def _answered(message: Message, where: str) -> list[Block]:
    thoughts = list(_thoughts(message, f"{where}.thinking_blocks"))
    blocks = [*_words(message, where), *_tool_uses(message, where)]
    return [*thoughts, *blocks] if blocks else []


def _thoughts(message: Message, where: str) -> Iterator[Block]:
    """Anthropic's thinking blocks, unchanged and in their order: their signatures are checked."""
    blocks = message.get("thinking_blocks") or ()
    if not isinstance(blocks, list | tuple):
        raise refused(where, "must be a list")
    for index, block in enumerate(blocks):
        match block:
            case {"type": "thinking", "thinking": str(text), "signature": str(signature)} if signature:
                yield {"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}}
            case {"type": "thinking", "thinking": str()}:
                pass
            case {"type": "redacted_thinking", "data": str(data)}:
                yield {"reasoningContent": {"redactedContent": data}}
            case _:
                raise refused(f"{where}[{index}]", "must be a block of type thinking or redacted_thinking")


def _words(message: Message, where: str) -> list[Block]:
    """Where only text is allowed."""
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
