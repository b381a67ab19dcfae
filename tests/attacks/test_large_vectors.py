"""Vectors for thousands of texts: an answer of tens of megabytes, that no other call waits for while it is decoded."""

import asyncio
import json
from collections.abc import Mapping
from typing import Final

import msgspec
import pytest
from attacks.loop_time import MAX_CALLBACK_S, callback_times
from conftest import Figure
from contracts.provider_stage import Part
from providers.stubs import openai
from providers.stubs.scripted import Reply, ScriptedServer
from server.stage import opened
from server.upstreams import one_model, upstream_of

from headgate.core.call import Format
from headgate.core.errors import UpstreamUnavailable

TEXTS: Final = 2048
DIMENSIONS: Final = 1024
VECTOR: Final = [0.1234567890123 * (at % 7 - 3) for at in range(DIMENSIONS)]


def _list(vectors: str) -> bytes:
    return f'{{"object":"list","data":[{vectors}],"usage":{{"prompt_tokens":8,"total_tokens":8}}}}'.encode()


def _items(vector: str) -> str:
    return ",".join(f'{{"object":"embedding","index":{at},"embedding":{vector}}}' for at in range(TEXTS))


def _ollama(vector: str) -> bytes:
    return f'{{"model":"m","embeddings":[{",".join([vector] * TEXTS)}],"prompt_eval_count":8}}'.encode()


def answers() -> Mapping[str, Reply]:
    vector = json.dumps(VECTOR)
    return {
        "ollama": Reply(_ollama(vector), headers={"content-type": "application/json"}),
        "openai": Reply(_list(_items(vector)), headers=openai.JSON),
    }


@pytest.mark.parametrize("provider", ["ollama", "openai"])
def test_a_large_answer_of_vectors_is_decoded_beside_the_loop(provider: str, figure: Figure) -> None:
    async def scene() -> None:
        async with ScriptedServer(answers()[provider]) as stub:
            await measure(stub)

    async def measure(stub: ScriptedServer) -> None:
        async with opened(one_model(upstream_of(provider, stub, Part.EMBEDDINGS))) as house:
            with callback_times() as seconds:
                reply = await house.gateway.embed(model="m", input=["x"] * TEXTS)
        assert len(reply.vectors) == TEXTS
        assert list(reply.vectors[-1]) == VECTOR
        assert reply.usage.input_tokens == 8
        figure(f"2,048 vectors of {provider}: longest callback", f"{max(seconds) * 1000:.0f} ms")
        assert max(seconds) < MAX_CALLBACK_S / 2

    asyncio.run(scene())


def test_a_large_answer_is_encoded_in_pieces(figure: Figure) -> None:
    """An answer that was translated is written anew; the others go on meanwhile."""

    async def scene() -> None:
        async with ScriptedServer(answers()["ollama"]) as stub:
            await measure(stub)

    async def measure(stub: ScriptedServer) -> None:
        texts = msgspec.Raw(json.dumps(["x"] * TEXTS).encode())
        async with opened(one_model(upstream_of("ollama", stub, Part.EMBEDDINGS))) as house:
            requests = house.gateway.requests
            call = requests.begin(
                "large", "m", {"input": texts}, wanted=Format.EMBEDDINGS, size_bytes=len(texts)
            )
            with callback_times() as seconds:
                reply = await requests.answer(call)
        body = json.loads(reply.body)
        assert [item["index"] for item in body["data"]] == list(range(TEXTS))
        assert body["data"][-1]["embedding"] == VECTOR
        figure("2,048 vectors written for a client: longest callback", f"{max(seconds) * 1000:.0f} ms")
        assert max(seconds) < MAX_CALLBACK_S

    asyncio.run(scene())


@pytest.mark.parametrize("vector", ['["x"]', "{}", "null"])
def test_a_vector_that_is_none_is_a_broken_envelope(vector: str) -> None:
    """In a thread as in the loop."""

    async def scene() -> None:
        good = json.dumps(VECTOR)
        body = _ollama(good).replace(good.encode(), vector.encode(), 1)
        stub = ScriptedServer(Reply(body, headers={"content-type": "application/json"}))
        async with stub:
            await ask(stub)

    async def ask(stub: ScriptedServer) -> None:
        async with opened(one_model(upstream_of("ollama", stub, Part.EMBEDDINGS))) as house:
            with pytest.raises(UpstreamUnavailable) as caught:
                await house.gateway.embed(model="m", input=["x"] * TEXTS)
            assert caught.value.failure.code == "bad_envelope"
            assert house.all_free

    asyncio.run(scene())
