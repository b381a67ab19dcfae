"""A request as the body of `POST /v1/messages`.

Parameters Anthropic has too (`temperature`, `top_p`, `top_k`, `thinking`, …) and all unknown ones pass untouched.
Dropped as harmless: what `params.HARMLESS` lists, `metadata` but its `user_id`, service tiers Anthropic does not sell.
"""

from collections.abc import Mapping
from typing import Any, Final

from headgate.core.messages import Request
from headgate.providers.anthropic.conversation import to_conversation
from headgate.providers.params import HARMLESS, UNTRANSLATED, Neutral, refused, sift
from headgate.providers.parts import function_of, tools_of

Body = dict[str, Any]

_UNTRANSLATED: Final[Mapping[str, Neutral]] = {
    **UNTRANSLATED,
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "seed": (),
}
_EFFORTS: Final = frozenset({"low", "medium", "high", "xhigh", "max"})
_TIERS: Final = {"auto": "auto", "default": "standard_only", "standard_only": "standard_only"}
_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}


def to_body(request: Request, *, model: str, max_tokens: int, stream: bool) -> Body:
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
