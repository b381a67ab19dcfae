"""What a span is called and says, by the conventions of OpenTelemetry for generative AI. Pure: events in, words out.

The names stand here as text: the conventions are still moving, and their Python package marks all of them as moved.
"""

from collections.abc import Mapping
from typing import Final

from headgate.core.events import AttemptEnded, Cancelled, Responded, WaitEnded

Attributes = dict[str, str | int | float]
QUEUE: Final = "queue"
CANCELLED: Final = "cancelled"
_PROVIDERS: Final[Mapping[str, str]] = {"bedrock": "aws.bedrock"}
"""Where the conventions have another name than our settings."""


def request_attributes(event: Responded | Cancelled, job_id: str | None) -> Attributes:
    """Of the whole request. Tokens are told by the attempts, so that nobody counts them twice."""
    told: Attributes = {
        "gen_ai.operation.name": event.operation,
        "gen_ai.request.model": event.model,
        "headgate.request.id": event.request_id,
        "headgate.tenant": event.tenant,
        "headgate.lane": str(event.lane),
    }
    if job_id is not None:
        told["headgate.job.id"] = job_id
    if isinstance(event, Cancelled):
        return {**told, "error.type": CANCELLED}
    told["headgate.attempts"] = event.attempts
    told["headgate.queue_ms"] = event.queue_ms
    optional = {
        "headgate.upstream": event.upstream,
        "headgate.agent.id": event.agent_id,
        "headgate.cost_usd": event.cost_usd,
        "gen_ai.response.time_to_first_chunk": None
        if event.first_token_ms is None
        else event.first_token_ms / 1000,
        # The class or the code alone: a type has few values.
        "error.type": None if event.error is None else event.error.partition(" ")[0],
    }
    return told | {name: value for name, value in optional.items() if value is not None}


def attempt_attributes(event: AttemptEnded, operation: str) -> Attributes:
    provider, model = provider_and_model(event.upstream)
    told: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider,
        "gen_ai.request.model": model,
        "headgate.upstream": event.upstream,
        "headgate.attempt": event.attempt,
    }
    if event.usage is not None:
        told["gen_ai.usage.input_tokens"] = event.usage.input_tokens
        told["gen_ai.usage.output_tokens"] = event.usage.output_tokens
    if event.failure is not None:
        told["error.type"] = str(event.failure.kind)
        if event.failure.status is not None:
            told["http.response.status_code"] = event.failure.status
    return told


def wait_attributes(event: WaitEnded) -> Attributes:
    return {"headgate.upstream": event.upstream, "headgate.lane": str(event.lane)}


def provider_and_model(upstream: str) -> tuple[str, str]:
    """`openai/gpt-5-mini#2` is OpenAI's gpt-5-mini; an upstream without a model's name is the provider's default."""
    provider, _, model = upstream.partition("#")[0].partition("/")
    return _PROVIDERS.get(provider, provider), model or provider
