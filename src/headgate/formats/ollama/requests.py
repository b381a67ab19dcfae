"""Requests as the bodies of `POST /api/chat` and `POST /api/embed`.

Sampling parameters go into `options`; Ollama's own fields (`think`, `keep_alive`, `format`, …) and unknown ones pass
untouched. What an assistant's message says it thought goes back as its `thinking`. Dropped as harmless: what
`params.HARMLESS` lists, users and their metadata, service tiers, a message's `name`, an image's `detail`, `strict` of
tools, `encoding_format` of embeddings (vectors come as numbers), signatures of thoughts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from headgate.core.call import Message
from headgate.formats.chat import ChatRequest
from headgate.formats.embeddings import EmbeddingRequest
from headgate.formats.params import HARMLESS, UNTRANSLATED, Neutral, refused, sift
from headgate.formats.parts import (
    SYSTEM_ROLES,
    embedded,
    function_of,
    image_url_of,
    parts_of,
    text_of,
    tool_calls_of,
    tools_of,
)

Body = dict[str, Any]
KeepAlive = str | float | None

MODEL_OPTIONS: Final = frozenset(
    {
        "draft_num_predict",
        "frequency_penalty",
        "main_gpu",
        "min_p",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_predict",
        "num_thread",
        "numa",
        "penalize_newline",
        "presence_penalty",
        "repeat_last_n",
        "repeat_penalty",
        "seed",
        "stop",
        "temperature",
        "tfs_z",
        "top_k",
        "top_p",
        "typical_p",
        "use_mlock",
        "use_mmap",
    }
)
"""What Ollama calls `options` of a call: how the model is loaded and how it draws its words."""
_HARMLESS: Final = HARMLESS | {"user", "safety_identifier", "metadata", "service_tier"}
_HARMLESS_FOR_VECTORS: Final = _HARMLESS | {"encoding_format", "input"}
_UNTRANSLATED: Final[Mapping[str, Neutral]] = {**UNTRANSLATED, "parallel_tool_calls": (True,)}
_ROLES: Final = frozenset({"user", "assistant", "tool"})


def to_chat_body(
    request: ChatRequest, *, model: str, options: Mapping[str, Any], keep_alive: KeepAlive
) -> Body:
    """Always streamed. Raises a rejected `ProviderFailure` that names what Ollama's format cannot say."""
    params = sift(request.params, provider="ollama", harmless=_HARMLESS, untranslated=_UNTRANSLATED)
    body: Body = {"model": model, "messages": to_messages(request.messages), "stream": True}
    body |= _tools(params) | _format(params) | _think(params)
    return _kept(keep_alive) | _with_model_options(params, options) | body


def to_embed_body(
    request: EmbeddingRequest, *, model: str, options: Mapping[str, Any], keep_alive: KeepAlive
) -> Body:
    params = sift(request.params, provider="ollama", harmless=_HARMLESS_FOR_VECTORS, untranslated={})
    body: Body = {"model": model, "input": list(request.texts)}
    return _kept(keep_alive) | _with_model_options(params, options) | body


def to_messages(messages: Sequence[Message]) -> list[Body]:
    tool_names: dict[str, str] = {}
    return [_message(message, f"messages[{index}]", tool_names) for index, message in enumerate(messages)]


def _message(message: Message, where: str, tool_names: dict[str, str]) -> Body:
    role = "system" if message["role"] in SYSTEM_ROLES else message["role"]
    if role != "system" and role not in _ROLES:
        raise refused(f"{where}.role", f"is {role[:40]!r}: use system, developer, user, assistant or tool")
    translated: Body = {"role": role} | _content(message, where)
    if role == "assistant":
        return translated | _thought(message, where) | _tool_calls(message, where, tool_names)
    if role == "tool":
        return translated | _answered(message, tool_names)
    return translated


def _content(message: Message, where: str) -> Body:
    """Ollama has one text per message and the images beside it."""
    texts, images = [], []
    for index, part in enumerate(parts_of(message)):
        place = f"{where}.content[{index}]"
        kind = part.get("type")
        if kind in {"text", "refusal"}:
            texts.append(text_of(part, place))
        elif kind == "image_url":
            images.append(_image(part, place))
        else:
            raise refused(place, f"is of type {str(kind)[:40]}; ollama takes texts and images")
    content: Body = {"content": "\n".join(texts)}
    return content | {"images": images} if images else content


def _image(part: Mapping[str, Any], where: str) -> str:
    data = embedded(image_url_of(part, where), where)
    if data is None:
        raise refused(f"{where}.image_url", "must be a data URL with base64: ollama fetches no images")
    return data.base64


def _thought(message: Message, where: str) -> Body:
    """What the model thought: as its text, else the texts of the blocks that other providers sign."""
    text = message.get("reasoning_content")
    if text is not None and not isinstance(text, str):
        raise refused(f"{where}.reasoning_content", "must be a text")
    blocks = message.get("thinking_blocks") or ()
    if not isinstance(blocks, Sequence) or not all(isinstance(block, Mapping) for block in blocks):
        raise refused(f"{where}.thinking_blocks", "must be a list of objects")
    thoughts = (block.get("thinking") for block in blocks)
    text = text or "\n".join(thought for thought in thoughts if isinstance(thought, str))
    return {"thinking": text} if text else {}


def _tool_calls(message: Message, where: str, tool_names: dict[str, str]) -> Body:
    calls = list(tool_calls_of(message, where))
    tool_names.update({call.id: call.name for call in calls})
    if not calls:
        return {}
    return {
        "tool_calls": [
            {
                "id": call.id,
                "type": "function",
                "function": {"index": index, "name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(calls)
        ]
    }


def _answered(message: Message, tool_names: Mapping[str, str]) -> Body:
    """Ollama tells results apart by the tool's name, newer versions also by the call's id."""
    call_id = message.get("tool_call_id")
    name = tool_names.get(call_id, message.get("name")) if isinstance(call_id, str) else message.get("name")
    told = {"tool_call_id": call_id, "tool_name": name}
    return {key: value for key, value in told.items() if value}


def _tools(params: Body) -> Body:
    """Ollama has no tool choice: `none` leaves the tools out, and what would force one cannot be said."""
    tools = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools_of(params))]
    params.pop("tools", None)
    choice = params.pop("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise refused("tool_choice", "can only be auto or none for ollama")
    return {"tools": tools} if tools and choice == "auto" else {}


def _tool(tool: Mapping[str, Any], where: str) -> Body:
    function = function_of(tool, where)
    if function is None:
        raise refused(where, "is no function; ollama takes no other tools")
    described = {"description": function.description} if function.description is not None else {}
    return {
        "type": "function",
        "function": {"name": function.name, **described, "parameters": function.parameters},
    }


def _format(params: Body) -> Body:
    asked = params.pop("response_format", None)
    if asked is None:
        return {}
    kind = asked.get("type") if isinstance(asked, Mapping) else None
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"format": "json"}
    schema = asked.get("json_schema") if isinstance(asked, Mapping) and kind == "json_schema" else None
    if not isinstance(schema, Mapping) or not isinstance(schema.get("schema"), Mapping):
        raise refused("response_format", "must be of type text, json_object or json_schema with a schema")
    return {"format": schema["schema"]}


def _think(params: Body) -> Body:
    """As Ollama's own OpenAI route does: `none` switches thinking off, the rest are its levels."""
    effort = params.pop("reasoning_effort", None)
    if effort is None:
        return {}
    return {"think": False if effort == "none" else effort}


def _kept(keep_alive: KeepAlive) -> Body:
    return {} if keep_alive is None else {"keep_alive": keep_alive}


def _with_model_options(params: Body, options: Mapping[str, Any]) -> Body:
    """The operator's options, then the request's `options`, then its parameters of the same meaning."""
    given = params.pop("options", {})
    if not isinstance(given, Mapping):
        raise refused("options", "must be an object")
    bounds = [params.pop(name, None) for name in ("max_completion_tokens", "max_tokens")]
    bound = next((bound for bound in bounds if bound is not None), None)
    asked = {name: params.pop(name) for name in list(params) if name in MODEL_OPTIONS}
    if isinstance(asked.get("stop"), str):
        asked["stop"] = [asked["stop"]]
    if bound is not None:
        asked["num_predict"] = bound
    merged = {**options, **given, **asked}
    return params | {"options": merged} if merged else params
