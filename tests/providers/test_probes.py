"""Asking a provider whether it would answer: it is there, it lets us in, it has the model. None of it costs anything."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
from contracts.provider_stage import KEY, TIMEOUTS
from providers.stubs import anthropic, bedrock, ollama, openai
from providers.stubs.openai import JSON
from providers.stubs.scripted import Reply, ScriptedServer

from headgate.core.errors import ProviderFailure
from headgate.core.failures import FailureKind
from headgate.core.ports.provider import Probing, Sighting
from headgate.providers.anthropic import AnthropicOptions, AnthropicProvider
from headgate.providers.bedrock import BedrockOptions, BedrockProvider
from headgate.providers.ollama import OllamaOptions, OllamaProvider
from headgate.providers.openai import OpenAIOptions, OpenAIProvider
from headgate.transport import Transport


class Case(NamedTuple):
    """One provider: how it is made, where it asks, and its server's replies."""

    make: Callable[[str, Transport, str], Any]
    path: str
    model: str
    there: Any
    elsewhere: Any
    unauthorised: Any


def _listed(body: Any, status: int = 200) -> Reply:
    return Reply(json.dumps(body).encode(), status=status, headers=JSON)


CASES = {
    "openai": Case(
        lambda url, transport, model: OpenAIProvider(
            OpenAIOptions(base_url=f"{url}/v1", api_key=KEY),
            model=model,
            transport=transport,
            timeouts=TIMEOUTS,
        ),
        "/v1/models",
        "gpt-5-mini",
        _listed({"object": "list", "data": [{"id": "gpt-5"}, {"id": "gpt-5-mini"}]}),
        _listed({"object": "list", "data": [{"id": "gpt-5"}]}),
        openai.error(401, "invalid_api_key"),
    ),
    "anthropic": Case(
        lambda url, transport, model: AnthropicProvider(
            AnthropicOptions(base_url=url, api_key=KEY), model=model, transport=transport, timeouts=TIMEOUTS
        ),
        "/v1/models/claude-test",
        "claude-test",
        _listed({"type": "model", "id": "claude-test-20260101"}),
        anthropic.error(404, "not_found_error", "model: claude-test"),
        anthropic.error(401, "authentication_error", "invalid x-api-key"),
    ),
    "ollama": Case(
        lambda url, transport, model: OllamaProvider(
            OllamaOptions(base_url=url), model=model, transport=transport, timeouts=TIMEOUTS
        ),
        "/api/tags",
        "gemma3",
        _listed({"models": [{"name": "gemma3:latest", "size": 3}]}),
        _listed({"models": [{"name": "gemma3:27b"}]}),
        ollama.error(401, "unauthorized"),
    ),
    "bedrock": Case(
        lambda url, transport, model: BedrockProvider(
            BedrockOptions(
                region=bedrock.REGION,
                base_url=url,
                access_key_id=bedrock.KEY_ID,
                secret_access_key=bedrock.SECRET,
            ),
            model=model,
            transport=transport,
            timeouts=TIMEOUTS,
        ),
        "/foundation-models",
        "us.amazon.nova-lite-v1:0",
        bedrock.whole({"modelSummaries": [{"modelId": "amazon.nova-lite-v1:0", "modelName": "Nova"}]}),
        bedrock.whole({"modelSummaries": []}),
        bedrock.refusal(403, "UnrecognizedClientException", "The security token is invalid."),
    ),
}
EVERY = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def probe(case: Case, reply: Any, model: str | None = None) -> tuple[Sighting, Sequence[Any]]:
    async def ask() -> tuple[Sighting, Sequence[Any]]:
        async with AsyncExitStack() as stack:
            transport = Transport()
            stack.push_async_callback(transport.aclose)
            stub: Any = (
                bedrock.BedrockStub(reply) if isinstance(reply, bedrock.Reply) else ScriptedServer(reply)
            )
            server = await stack.enter_async_context(stub)
            provider = case.make(server.url, transport, model or case.model)
            assert isinstance(provider, Probing)
            stack.push_async_callback(provider.aclose)  # type: ignore[attr-defined]
            sighting = await provider.probe()
            return sighting, getattr(server, "requests", None) or server.seen

    return asyncio.run(ask())


@EVERY
def test_a_model_that_is_there_is_found_with_one_question(case: Case) -> None:
    sighting, seen = probe(case, case.there)

    assert sighting.has_model is True
    assert [getattr(request, "path", None) or request.target for request in seen] == [case.path]
    assert not [request for request in seen if getattr(request, "raw", b"")]


@EVERY
def test_a_model_that_is_not_there_is_missed(case: Case) -> None:
    assert probe(case, case.elsewhere)[0].has_model is False


@EVERY
def test_who_is_not_let_in_hears_of_it(case: Case) -> None:
    with pytest.raises(ProviderFailure) as refused:
        probe(case, case.unauthorised)

    assert refused.value.failure.kind is FailureKind.MISCONFIGURED
    assert KEY not in str(refused.value)


@EVERY
def test_a_server_that_is_away_is_a_passing_failure(case: Case) -> None:
    async def ask() -> None:
        transport = Transport()
        provider = case.make("http://127.0.0.1:1", transport, case.model)
        try:
            await provider.probe()
        finally:
            await provider.aclose()
            await transport.aclose()

    with pytest.raises(ProviderFailure) as failed:
        asyncio.run(ask())
    assert failed.value.failure.kind is FailureKind.TRANSIENT


def test_servers_that_list_nothing_are_no_failure() -> None:
    """llama.cpp behind a proxy, a VPC endpoint: they can be called all the same."""
    for name, reply in (
        ("openai", Reply(b"not found", status=404)),
        ("bedrock", bedrock.refusal(403, "AccessDeniedException", "not authorized to perform")),
        ("bedrock", bedrock.refusal(404, "UnknownOperationException", "")),
    ):
        sighting, _ = probe(CASES[name], reply)
        assert sighting.has_model is None
        assert sighting.remark


def test_an_inference_profile_by_its_arn_cannot_be_looked_for() -> None:
    arn = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.amazon.nova-lite-v1:0"
    assert probe(CASES["bedrock"], CASES["bedrock"].there, arn)[0].has_model is None


@pytest.mark.parametrize("name", ["openai", "anthropic", "ollama"])
def test_json_that_is_no_list_of_models_is_no_sighting(name: str) -> None:
    """Something answers there, and it is not the provider: `ollama pull` would not help."""
    with pytest.raises(ProviderFailure, match="its body is no list of models"):
        probe(CASES[name], _listed({"hello": 1}))
