"""A chat request as the body of `POST /v1/messages`.

Parameters that Anthropic has too (`temperature`, `top_p`, `top_k`, `thinking`, …) and all unknown ones pass untouched.
Dropped as harmless: what `params.HARMLESS` lists, `metadata` except its `user_id`, and service tiers that Anthropic
does not sell.

System and developer messages are gathered in front, wherever they were: Anthropic has one place for them. Turns of the
same side become one, so that all results of parallel tool calls are together, as Anthropic demands. Parts of a type
that OpenAI does not have (`document`, `thinking`, …) are taken for Anthropic's own and passed untouched.

An assistant's `thinking_blocks` go back in front of what it said. Dropped as harmless: a message's `name`, an image's
`detail`, empty texts, and `reasoning_content`, because Anthropic accepts thoughts only with their signature.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

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

_UNTRANSLATED: Final[Mapping[str, Neutral]] = {
    **UNTRANSLATED,
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (),
}
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_TIERS: Final = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}
_FOREIGN_PARTS: Final = frozenset({"input_audio", "file", "video_url"})


def to_body(request: ChatRequest, *, model: str, max_tokens: int, stream: bool) -> Body:
    """Raises a rejected `ProviderFailure` that names what Anthropic's format cannot say."""
    params = sift(request.params, provider="anthropic", harmless=HARMLESS, untranslated=_UNTRANSLATED)
    system, turns = to_conversation(request.messages)
    body: Body = {"model": model, "max_tokens": _max_tokens(params, max_tokens), "messages": turns}
    if system and "system" in params:
        raise refused("system", "was given twice: as a parameter and as a message")
    if system:
        body["system"] = system
    body |= _stop(params) | _user(params) | _tier(params) | _tools(params) | _output(params)
    return {**params, **body, "stream": True} if stream else {**params, **body}


def _max_tokens(params: Body, default: int) -> Any:
    bounds = [params.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
    return next((bound for bound in bounds if bound is not None), default)


def _stop(params: Body) -> Body:
    stop = params.pop("stop", None)
    if not stop:
        return {}
    return {"stop_sequences": [stop] if isinstance(stop, str) else stop}


def _user(params: Body) -> Body:
    """Both name an end user. OpenAI's other metadata are labels for its own dashboard."""
    metadata = params.pop("metadata", None)
    users = [params.pop(name, None) for name in ("safety_identifier", "user")]
    named = metadata.get("user_id") if isinstance(metadata, Mapping) else None
    user = next((user for user in (named, *users) if user), None)
    return {"metadata": {"user_id": user}} if user else {}


def _tier(params: Body) -> Body:
    tier = _TIERS.get(str(params.pop("service_tier", None)))
    return {"service_tier": tier} if tier else {}


def _tools(params: Body) -> Body:
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools_of(params))]
    params.pop("tools", None)
    choice = _choice(params.pop("tool_choice", None))
    one_at_a_time = params.pop("parallel_tool_calls", None) is False
    if not tools:
        if choice and choice["type"] not in {"auto", "none"}:
            raise refused("tool_choice", "asks for a tool, but there are no tools")
        return {}
    if one_at_a_time and (choice is None or choice["type"] != "none"):
        choice = {**(choice or {"type": "auto"}), "disable_parallel_tool_use": True}
    return {"tools": tools, "tool_choice": choice} if choice else {"tools": tools}


def _tool(tool: Mapping[str, Any], where: str) -> Body:
    function = function_of(tool, where)
    if function is None:
        if "custom" in tool:
            raise refused(where, "is a custom tool of OpenAI's; anthropic takes functions and its own tools")
        return dict(tool)  # Anthropic's own: web search and the like.
    translated: Body = {"name": function.name, "input_schema": function.parameters}
    if function.description is not None:
        translated["description"] = function.description
    if function.strict:
        translated["strict"] = True
    if "cache_control" in tool:
        translated["cache_control"] = tool["cache_control"]
    return translated


def _choice(choice: object) -> Body | None:
    if choice is None:
        return None
    if isinstance(choice, str) and choice in _CHOICES:
        return {"type": _CHOICES[choice]}
    if isinstance(choice, Mapping):
        function = choice.get("function")
        if choice.get("type") == "function" and isinstance(function, Mapping) and function.get("name"):
            return {"type": "tool", "name": function["name"]}
        if choice.get("type") in {"auto", "any", "tool", "none"}:
            return dict(choice)
    raise refused("tool_choice", "must be auto, none, required or a function by its name")


def _output(params: Body) -> Body:
    """Schema and effort share one place at Anthropic."""
    given = params.pop("output_config", None) or {}
    if not isinstance(given, Mapping):
        raise refused("output_config", "must be an object")
    config = {**given, **_format(params.pop("response_format", None)), **_effort(params)}
    return {"output_config": config} if config else {}


def _format(asked: object) -> Body:
    if asked is None:
        return {}
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    if isinstance(asked, Mapping) and kind == "json_schema":
        schema = asked.get("json_schema")
        if not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
            raise refused("response_format.json_schema", "must hold a schema")
        return {"format": {"type": "json_schema", "schema": schema["schema"]}}
    if kind == "text":
        return {}
    if kind == "json_object":
        raise refused("response_format", "json_object cannot be asked of anthropic; give a json_schema")
    raise refused("response_format", "must be an object of type text or json_schema")


def _effort(params: Body) -> Body:
    effort = params.pop("reasoning_effort", None)
    if effort is None:
        return {}
    if not isinstance(effort, str) or effort not in _EFFORTS:
        known = ", ".join(sorted(_EFFORTS))
        raise refused("reasoning_effort", f"must be one of {known} for anthropic")
    return {"effort": effort}


# ---- Messages -----------------------------------------------------------------------------------------------


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
            add_turn(conversation.turns, "assistant", _answered(message, where))
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


def _answered(message: Message, where: str) -> list[Block]:
    thoughts = _thoughts(message, where)
    blocks = [*_blocks(message, where), *_tool_uses(message, where)]
    # Anthropic rejects a message that ends with a thought, so one that holds nothing else is left out.
    return [*thoughts, *blocks] if blocks else []


def _thoughts(message: Message, where: str) -> Sequence[Block]:
    """As they came: Anthropic checks their signatures."""
    blocks = message.get("thinking_blocks") or ()
    if not isinstance(blocks, list | tuple) or not all(isinstance(block, Mapping) for block in blocks):
        raise refused(f"{where}.thinking_blocks", "must be a list of objects")
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
