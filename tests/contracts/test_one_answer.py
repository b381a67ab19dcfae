"""One call, one answer: the same body comes over HTTP, of a job, from the library and of a line of a batch.

Each provider stands in front of its stub, behind a served gateway, and is asked in every way that there is.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from contracts.provider_stage import QUESTION, TEXTS, Part
from openai import AsyncOpenAI
from providers.stubs.openai import OpenAIStub, text_completion
from server.http.front_stage import Answer, post
from server.stage import House, opened
from server.upstreams import CHAT, COMPLETIONS, EMBEDDINGS, look, one_model, sent, stub_of, upstream_of

from headgate.core.errors import InvalidRequest

Body = dict[str, Any]
Ask = Callable[[House, str, Body], Awaitable[Any]]
ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
TASKS: Final[Mapping[str, str]] = {CHAT: "chat", EMBEDDINGS: "embeddings"}
UNKNOWN: Final[Mapping[str, Any]] = {"deep": [1, 2.5, None, "ü"]}
"""The value of a field that Headgate does not know."""
ASKED: Final[Mapping[str, Body]] = {
    CHAT: {
        "model": "m",
        "messages": [{"role": "user", "content": QUESTION, "name": "ada"}],
        "x_new": UNKNOWN,
    },
    COMPLETIONS: {"model": "m", "prompt": QUESTION, "x_new": UNKNOWN},
    EMBEDDINGS: {"model": "m", "input": list(TEXTS), "x_new": UNKNOWN},
}
SEVERAL: Final = {
    "n": 2,
    "logprobs": True,
    "stream": False,
    "service_tier": "default",
    "metadata": {"a": "b"},
}
CALLED: Final = {"reasoning_content", "tool_calls"}
SIGNED: Final = {*CALLED, "thinking_blocks", "prompt_tokens_details", "cache_read_input_tokens"}
WHOLE: Final = {
    *CALLED,
    "logprobs",
    "system_fingerprint",
    "annotations",
    "service_tier",
    "prompt_tokens_details",
}
VECTORS: Final = {"embedding", "usage"}
TABLE: Final[Sequence[tuple[str, str, Part, Body, set[str]]]] = [
    # Provider, endpoint, what its stub plays, more fields of the request, and names that the answer must hold.
    ("openai", CHAT, Part.EXTRAS, SEVERAL, WHOLE),
    ("openai", COMPLETIONS, Part.ANSWER, {"n": 1}, {"text", "logprobs", "prompt_tokens_details"}),
    ("openai", EMBEDDINGS, Part.EMBEDDINGS, {"dimensions": 3}, VECTORS),
    ("anthropic", CHAT, Part.EXTRAS, {"top_k": 5}, {*SIGNED, "cache_creation_input_tokens"}),
    ("anthropic", COMPLETIONS, Part.EXTRAS, {}, {"text"}),
    ("ollama", CHAT, Part.EXTRAS, {"keep_alive": 5}, CALLED),
    ("ollama", COMPLETIONS, Part.EXTRAS, {}, {"text"}),
    ("ollama", EMBEDDINGS, Part.EMBEDDINGS, {"dimensions": 3}, VECTORS),
    ("bedrock", CHAT, Part.EXTRAS, {"top_k": 5}, SIGNED),
    ("bedrock", COMPLETIONS, Part.EXTRAS, {}, {"text"}),
    ("bedrock", EMBEDDINGS, Part.EMBEDDINGS, {}, VECTORS),
    ("simulated", CHAT, Part.ANSWER, {}, {"content", "usage"}),
    ("simulated", COMPLETIONS, Part.ANSWER, {}, {"text"}),
    ("simulated", EMBEDDINGS, Part.ANSWER, {}, VECTORS),
]


# ---- The ways to ask ----------------------------------------------------------------------------------------


async def directly(house: House, path: str, body: Body) -> Any:
    answer = await _post(house, path, body)
    assert answer.status == 200, answer.body
    return json.loads(answer.body)


async def as_a_job(house: House, path: str, body: Body) -> Any:
    return await _result(house, await _post(house, "/v1/jobs", {"task": TASKS[path], "input": body}))


async def asynchronously(house: House, path: str, body: Body) -> Any:
    return await _result(house, await _post(house, path, body, "Prefer: respond-async"))


async def with_the_library(house: House, path: str, body: Body) -> Any:
    ask: Callable[..., Awaitable[Any]] = house.gateway.complete if path == CHAT else house.gateway.embed
    return (await ask(**{name: value for name, value in body.items() if name != "stream"})).json()


async def in_a_batch(house: House, path: str, body: Body) -> Any:
    line = {"custom_id": "a", "method": "POST", "url": path, "body": body}
    endpoint: Any = path
    async with AsyncOpenAI(base_url=f"{house.url}/v1", api_key="any", max_retries=0) as client:
        file = await client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
        batch = await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")
        while batch.status not in ENDED:
            await asyncio.sleep(0.02)
            batch = await client.batches.retrieve(batch.id)
        assert batch.output_file_id is not None, batch
        response = json.loads((await client.files.content(batch.output_file_id)).content)["response"]
    assert response["status_code"] == 200
    return response["body"]


OTHER_WAYS: Final[Sequence[Ask]] = (as_a_job, asynchronously, with_the_library, in_a_batch)


async def _post(house: House, path: str, body: Body, *headers: str) -> Answer:
    return await sent(
        house, post(json.dumps(body).encode(), path, "Content-Type: application/json", *headers)
    )


async def _result(house: House, accepted: Answer) -> Any:
    assert accepted.status == 202, accepted.body
    job = json.loads((await look(house, f"/v1/jobs/{json.loads(accepted.body)['id']}?wait=10")).body)
    assert job["state"] == "completed", job
    return job["result"]


# ---- What is the same ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("provider", "path", "part", "fields", "holds"), TABLE, ids=[f"{row[0]}{row[1][3:]}" for row in TABLE]
)
def test_every_way_to_ask_brings_the_same_answer(
    tmp_path: Path, provider: str, path: str, part: Part, fields: Body, holds: set[str]
) -> None:
    """Whatever the provider sends and whatever the caller adds: no way knows less than another."""
    native = provider == "openai" and path == COMPLETIONS
    stub: Any = OpenAIStub(text_completion()) if native else stub_of(provider, part)
    asked = {**ASKED[path], **fields}

    async def scene() -> None:
        async with stub:
            settings = {"data_dir": str(tmp_path), **one_model(upstream_of(provider, stub, part))}
            async with opened(settings, work=True) as house:
                direct = await directly(house, path, asked)
                assert holds <= {name for name, _ in _walk(direct)}
                if path == COMPLETIONS:
                    await _is_the_only_way(house, asked)
                    return
                for ask in OTHER_WAYS:
                    assert _kept(await ask(house, path, asked)) == _kept(direct), ask.__name__
        received = _received(stub)
        assert received == received[:1] * (1 + len(OTHER_WAYS))
        assert not received or ("x_new", UNKNOWN) in _walk(received[0])

    asyncio.run(asyncio.wait_for(scene(), 30))


async def _is_the_only_way(house: House, asked: Body) -> None:
    """Completions are only answered directly."""
    later = await _post(house, COMPLETIONS, asked, "Prefer: respond-async")
    job = await _post(house, "/v1/jobs", {"task": "completions", "input": asked})
    refusals = [(one.status, json.loads(one.body)["error"]["param"]) for one in (later, job)]
    assert refusals == [(400, "Prefer"), (400, "task")]
    with pytest.raises(InvalidRequest, match=f"endpoint must be one of {CHAT}, {EMBEDDINGS}, not"):
        await house.gateway.batches.create(input_file_id="file-1", endpoint=COMPLETIONS)


def _kept(value: Any) -> Any:
    """A JSON value without ids and times, however deep: Ollama's tool calls get theirs from the request's."""
    if isinstance(value, dict):
        return {name: _kept(inner) for name, inner in value.items() if name not in {"id", "created"}}
    return [_kept(inner) for inner in value] if isinstance(value, list) else value


def _received(stub: Any) -> list[Any]:
    """The bodies that reached the provider; the simulated one has no upstream."""
    return [one.body for one in getattr(stub, "requests", getattr(stub, "seen", ()))]


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every name in a JSON value, however deep, with what it names."""
    if isinstance(value, dict):
        yield from value.items()
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _walk(inner)
