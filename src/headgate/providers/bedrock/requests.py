"""A chat request, turned into the body of Converse and ConverseStream.

Parameters go one of five ways: translated; kept as they are, when they bear the name of a field of Converse; passed
over, where leaving them out changes nothing (`HARMLESS`, neutral values, nulls); refused, where they are OpenAI's own
and Converse has nothing like them; and all others go to the model itself, in `additionalModelRequestFields`.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headgate.core.messages import Request
from headgate.providers.bedrock.conversation import Conversation
from headgate.providers.bedrock.faults import rejected
from headgate.providers.bedrock.tools import tool_config

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
HARMLESS: Final = frozenset(
    {
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "store",
        "stream",
        "stream_options",
        "user",
    }
)
NEUTRAL: Final[Mapping[str, Any]] = {
    "n": 1,
    "logprobs": False,
    "logit_bias": {},
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "parallel_tool_calls": True,
    "modalities": ["text"],
}
"""Refused, unless they hold the value that changes nothing."""
REFUSED: Final = frozenset(
    {
        "audio",
        "function_call",
        "functions",
        "prediction",
        "seed",
        "top_logprobs",
        "verbosity",
        "web_search_options",
    }
)
_INFERENCE: Final[Mapping[str, str]] = {
    "max_tokens": "maxTokens",
    "max_completion_tokens": "maxTokens",
    "temperature": "temperature",
    "top_p": "topP",
}


def converse_body(request: Request, additional_fields: Mapping[str, Any]) -> bytes:
    conversation = Conversation(request.messages)
    params = {
        name: value for name, value in request.params.items() if value is not None and name not in HARMLESS
    }
    body: dict[str, Any] = {"messages": conversation.turns}
    if conversation.system:
        body["system"] = conversation.system
    _add_inference(body, params)
    tools, choice = params.pop("tools", None), params.pop("tool_choice", None)
    if config := tool_config(tools, choice, used_before=conversation.uses_tools):
        body["toolConfig"] = config
    _add_format(body, params)
    _add_services(body, params)
    _add_rest(body, params, additional_fields)
    return encoded(body)


def encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(body)
    except (TypeError, UnicodeEncodeError, RecursionError):
        raise rejected("the request", "holds a value that is no JSON") from None


def _add_inference(body: dict[str, Any], params: dict[str, Any]) -> None:
    inference: dict[str, Any] = {}
    for name, theirs in _INFERENCE.items():
        if name in params:
            inference[theirs] = params.pop(name)
    stop = params.pop("stop", None)
    if stop:
        inference["stopSequences"] = [stop] if isinstance(stop, str) else stop
    if inference:
        body["inferenceConfig"] = inference


def _add_format(body: dict[str, Any], params: dict[str, Any]) -> None:
    match params.pop("response_format", None):
        case None | {"type": "text"}:
            return
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **rest}}:
            # Converse wants the schema as a text.
            told = {name: rest[name] for name in ("name", "description") if rest.get(name)}
            structure = {"jsonSchema": {"schema": encoded(schema).decode(), **told}}
            body["outputConfig"] = {"textFormat": {"type": "json_schema", "structure": structure}}
        case _:
            raise rejected(
                "response_format", "must be text or json_schema with a schema: Bedrock knows no others"
            )


def _add_services(body: dict[str, Any], params: dict[str, Any]) -> None:
    tier = params.pop("service_tier", "auto")
    if tier != "auto":
        body["serviceTier"] = {"type": tier}
    if metadata := params.pop("metadata", None):
        body["requestMetadata"] = metadata


def _add_rest(body: dict[str, Any], params: dict[str, Any], additional_fields: Mapping[str, Any]) -> None:
    own = params.pop(ADDITIONAL, {})
    if not isinstance(own, Mapping):
        raise rejected(ADDITIONAL, "must be an object")
    additional = dict(additional_fields)
    for name, value in params.items():
        if name in REFUSED or (name in NEUTRAL and value != NEUTRAL[name]):
            raise rejected(name, "cannot be passed on: Bedrock's Converse has nothing like it; leave it out")
        if name in CONVERSE_FIELDS:
            body[name] = value
        elif name not in NEUTRAL:
            additional[name] = value
    additional.update(own)
    if additional:
        body[ADDITIONAL] = additional
