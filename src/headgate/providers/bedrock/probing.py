"""Which models Bedrock's control plane lists, and whether ours is one of them."""

import re
from typing import Final

import msgspec

from headgate.core.ports.provider import Sighting
from headgate.formats.converse.failures import decoded
from headgate.providers.bedrock.options import BedrockOptions
from headgate.transport import Endpoint

NO_LIST: Final = {
    "AccessDeniedException": "these credentials may not list models (bedrock:ListFoundationModels)",
    "UnknownOperationException": "this endpoint lists no models",
}
"""Answers of one who knows us and does not list: no failure."""
_PROFILE: Final = re.compile(r"(?:us|eu|apac|jp|au|ca|sa|us-gov|global)\.(?=[a-z0-9-]+\.)")


class _Summary(msgspec.Struct, rename="camel"):
    model_id: str


class _Listed(msgspec.Struct, rename="camel"):
    model_summaries: list[_Summary]


def listing(options: BedrockOptions) -> Endpoint:
    """Models are listed by another host than the one that calls them."""
    base_url = options.base_url or f"https://bedrock.{options.region}.amazonaws.com"
    return Endpoint(f"{base_url.rstrip('/')}/foundation-models", method="GET")


def sighting(body: bytes, model: str, host: str) -> Sighting:
    models = tuple(summary.model_id for summary in decoded(body, _Listed, host).model_summaries)
    if model.startswith("arn:"):
        return Sighting(has_model=None, models=models, remark="an ARN stands in no list")
    return Sighting(has_model=_PROFILE.sub("", model, count=1) in models, models=models)
