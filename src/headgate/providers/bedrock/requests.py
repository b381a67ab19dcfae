"""A chat request as the body of Converse and ConverseStream.

Parameters with the name of a field of Converse (`guardrailConfig`, …) are kept as they are. What is neither
translated nor refused nor harmless is the model's own (`top_k`, `thinking`, `reasoning_effort`, …) and goes to it in
`additionalModelRequestFields`. Dropped as harmless: what `params.HARMLESS` lists, and names of end users.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.core.messages import Request
from headgate.providers.bedrock.conversation import to_conversation
from headgate.providers.bedrock.tools import tool_config
from headgate.providers.params import HARMLESS, UNTRANSLATED, Neutral, refused, sift

Body = dict[str, Any]

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


def to_body(request: Request, additional_fields: Mapping[str, Any]) -> Body:
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
            told = {name: given[name] for name in ("name", "description") if given.get(name)}
            structure = {"jsonSchema": {"schema": encoded(schema).decode(), **told}}
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
