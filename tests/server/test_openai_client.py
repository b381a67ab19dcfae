"""The official OpenAI client, unmodified, against a served gateway in front of every provider's stub."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import openai
import pytest
from contracts.provider_stage import KEY, QUESTION, RETRY_AFTER_S, SAID, VECTORS, WORDS, Part, Stub
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from providers.stubs import anthropic, bedrock, ollama
from providers.stubs import openai as openai_format
from providers.stubs.openai import OpenAIStub
from providers.stubs.scripted import ScriptedServer
from server.http.front_stage import Play
from server.keyed_stage import keyed_door
from server.stage import House, opened
from server.upstreams import PROVIDERS, can, interpose, one_model, stub_of, until, upstream_of

ASKED: Final[list[ChatCompletionMessageParam]] = [{"role": "user", "content": QUESTION}]
WEATHER: Final[ChatCompletionToolParam] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place",
        "parameters": {"type": "object", "properties": {"location": {"type": "string"}}},
    },
}
Act = Callable[[AsyncOpenAI, Stub, House], Coroutine[Any, Any, None]]


def every(part: Part) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("provider", [name for name in PROVIDERS if can(name, part)])


@asynccontextmanager
async def client_of(house: House, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{house.url}/v1", **{"api_key": "any", **options}) as client:
        yield client


def act_with(play: Play, provider: str, part: Part, act: Act, **options: Any) -> None:
    async def scene() -> None:
        async with stub_of(provider, part) as stub:
            settings = one_model(upstream_of(provider, stub, part))
            async with opened(settings) as house, client_of(house, **options) as client:
                await act(client, stub, house)
                assert house.all_free

    play(scene)


# ---- What goes well -------------------------------------------------------------------------------------


@every(Part.ANSWER)
def test_a_chat_is_answered(play: Play, provider: str) -> None:
    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        answer = await client.chat.completions.create(model="m", messages=ASKED)
        assert answer.choices[0].message.content == SAID
        assert answer.choices[0].message.role == "assistant"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer.usage.completion_tokens > 0
        assert answer._request_id is not None
        assert answer._request_id.startswith("req_")

    act_with(play, provider, Part.ANSWER, act)


@every(Part.STREAM)
def test_a_chat_is_streamed(play: Play, provider: str) -> None:
    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        stream = await client.chat.completions.create(
            model="m", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert said == SAID
        assert sum(bool(chunk.choices and chunk.choices[0].delta.content) for chunk in chunks) == len(WORDS)
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens > 0
        assert len({chunk.id for chunk in chunks}) == 1

    act_with(play, provider, Part.STREAM, act)


@every(Part.STREAM)
def test_the_clients_own_stream_helper_is_satisfied(play: Play, provider: str) -> None:
    """It checks the order of events, and puts the whole completion together itself."""

    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        async with client.chat.completions.stream(model="m", messages=ASKED) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == SAID
        assert final.choices[0].finish_reason == "stop"

    act_with(play, provider, Part.STREAM, act)


@every(Part.EMBEDDINGS)
def test_texts_are_embedded(play: Play, provider: str) -> None:
    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        # The client's own default is base64 (it decodes that itself); not every upstream knows it.
        told = await client.embeddings.create(model="m", input=["first", "second"], encoding_format="float")
        assert [tuple(item.embedding) for item in told.data] == list(VECTORS)
        assert [item.index for item in told.data] == [0, 1]

    act_with(play, provider, Part.EMBEDDINGS, act)


@every(Part.EMBEDDINGS)
def test_texts_are_embedded_as_the_client_asks_by_itself(play: Play, provider: str) -> None:
    """Without being told otherwise it asks for base64."""

    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        told = await client.embeddings.create(model="m", input=["first", "second"])
        assert [tuple(item.embedding) for item in told.data] == list(VECTORS)

    act_with(play, provider, Part.EMBEDDINGS, act)


def _text_stub(provider: str, part: Part) -> Stub:
    """The older route has its own shape where it passes through; for the others it is a chat."""
    if provider != "openai":
        return stub_of(provider, part)
    if part is Part.ANSWER:
        return OpenAIStub(openai_format.text_completion())
    said = [
        openai_format.event(choices=[{"index": 0, "text": word, "finish_reason": None}]) for word in WORDS
    ]
    return OpenAIStub(openai_format.stream([*said, openai_format.DONE]))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_older_route_completes_a_text(play: Play, provider: str) -> None:
    async def scene() -> None:
        async with _text_stub(provider, Part.ANSWER) as stub:
            settings = one_model(upstream_of(provider, stub, Part.ANSWER))
            async with opened(settings) as house, client_of(house) as client:
                answer = await client.completions.create(model="m", prompt=QUESTION)
                assert answer.object == "text_completion"
                assert answer.choices[0].text == SAID

    play(scene)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_older_route_streams_a_text(play: Play, provider: str) -> None:
    async def scene() -> None:
        async with _text_stub(provider, Part.STREAM) as stub:
            settings = one_model(upstream_of(provider, stub, Part.STREAM))
            async with opened(settings) as house, client_of(house) as client:
                stream = await client.completions.create(model="m", prompt=QUESTION, stream=True)
                assert "".join([chunk.choices[0].text async for chunk in stream]) == SAID

    play(scene)


def test_models_are_listed_and_looked_up(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model({"provider": "simulated"})) as house, client_of(house) as client:
            listed = [model.id async for model in client.models.list()]
            assert "m" in listed
            assert (await client.models.retrieve("m")).id == "m"
            # Families and slashes are part of a name, and the client escapes them.
            assert (await client.models.retrieve("simulated/slow")).id == "simulated/slow"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("nobody")

    play(scene)


# ---- Tools, there and back --------------------------------------------------------------------------------

_ARGUMENTS: Final = {"location": "San Francisco, CA"}
_CALL: Final = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"location": "San Francisco, CA"}'},
}


def _tool_stub(provider: str) -> Any:
    made: Mapping[str, Callable[[], Any]] = {
        "openai": lambda: OpenAIStub(
            openai_format.completion(
                {"content": None, "tool_calls": [_CALL]},
            )
        ),
        "anthropic": lambda: ScriptedServer(anthropic.said(anthropic.TOOL_BLOCK, stop_reason="tool_use")),
        "ollama": lambda: ScriptedServer(
            ollama.lines(ollama.calls(("get_weather", _ARGUMENTS)), ollama.last())
        ),
        "bedrock": lambda: _bedrock_stub(
            bedrock.said(
                {"toolUse": {"toolUseId": "t1", "name": "get_weather", "input": _ARGUMENTS}}, stop="tool_use"
            )
        ),
    }
    return made[provider]()


def _bedrock_stub(reply: bedrock.Reply) -> bedrock.BedrockStub:
    stub = bedrock.BedrockStub(reply, secret=KEY)
    stub.model = "amazon.nova-lite-v1:0"  # type: ignore[attr-defined]  # what the settings ask it for
    return stub


def _told_of_tools(provider: str, body: Any) -> tuple[str, str]:
    """How the upstream hears of the tool, and of the result of an earlier call."""
    match provider:
        case "openai" | "ollama":
            return body["tools"][0]["function"]["name"], body["messages"][-1]["content"]
        case "anthropic":
            result = body["messages"][-1]["content"][0]["content"]
            return body["tools"][0]["name"], result if isinstance(result, str) else result[0]["text"]
        case _:
            spec = body["toolConfig"]["tools"][0]["toolSpec"]
            return spec["name"], body["messages"][-1]["content"][0]["toolResult"]["content"][0]["text"]


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama", "bedrock"])
def test_tools_pass_in_both_directions(play: Play, provider: str) -> None:
    """A tool's schema and an earlier result go up, a call comes down, all in the client's own shapes."""
    history: list[ChatCompletionMessageParam] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},  # type: ignore[list-item]
        {"role": "tool", "tool_call_id": "call_1", "content": "18 °C"},
    ]

    async def scene() -> None:
        async with _tool_stub(provider) as stub:
            settings = one_model(upstream_of(provider, stub, Part.ANSWER))
            async with opened(settings) as house, client_of(house) as client:
                answer = await client.chat.completions.create(model="m", messages=history, tools=[WEATHER])
                choice = answer.choices[0]
                assert choice.message.tool_calls is not None
                call = choice.message.tool_calls[0]
                assert call.type == "function"
                assert call.id
                assert call.function.name == "get_weather"
                assert "San Francisco" in call.function.arguments
                if provider != "openai":  # Its stub says what it says.
                    assert choice.finish_reason == "tool_calls"
            asked = stub.seen if provider == "bedrock" else stub.requests
            assert _told_of_tools(provider, asked[0].body) == ("get_weather", "18 °C")

    play(scene)


def _tool_stream(provider: str) -> Any:
    """Two calls in one streamed answer, their arguments in pieces where the format has pieces."""
    opening = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_weather", "arguments": ""},
    }
    pieces = ['{"location":', ' "San Francisco, CA"}']
    deltas: list[Mapping[str, Any]] = []
    for index in (0, 1):
        deltas.append({"tool_calls": [{**opening, "index": index, "id": f"call_{index}"}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]

    def bedrock_tool(index: int) -> list[bytes]:
        start = {
            "start": {"toolUse": {"toolUseId": f"t{index}", "name": "get_weather"}},
            "contentBlockIndex": index,
        }
        deltas = [{"delta": {"toolUse": {"input": piece}}, "contentBlockIndex": index} for piece in pieces]
        return [
            bedrock.event("contentBlockStart", start),
            *(bedrock.event("contentBlockDelta", delta) for delta in deltas),
            bedrock.event("contentBlockStop", {"contentBlockIndex": index}),
        ]

    made: Mapping[str, Callable[[], Any]] = {
        "openai": lambda: OpenAIStub(
            openai_format.stream(
                openai_format.events(
                    *deltas,
                    finish_reason="tool_calls",
                )
            )
        ),
        "anthropic": lambda: ScriptedServer(
            anthropic.events(
                anthropic.START,
                *anthropic.tool_block(0, "t0", "get_weather", *pieces),
                *anthropic.tool_block(1, "t1", "get_weather", *pieces),
                *anthropic.ending("tool_use"),
            )
        ),
        "ollama": lambda: ScriptedServer(
            ollama.lines(
                ollama.calls(("get_weather", _ARGUMENTS), ("get_weather", _ARGUMENTS)), ollama.last()
            )
        ),
        "bedrock": lambda: _bedrock_stub(
            bedrock.events(
                bedrock.event("messageStart", {"role": "assistant"}),
                *bedrock_tool(0),
                *bedrock_tool(1),
                bedrock.event("messageStop", {"stopReason": "tool_use"}),
            )
        ),
    }
    return made[provider]()


@pytest.mark.parametrize("provider", ["openai", "anthropic", "ollama", "bedrock"])
def test_streamed_tool_calls_are_put_together_by_the_client(play: Play, provider: str) -> None:
    async def scene() -> None:
        async with _tool_stream(provider) as stub:
            settings = one_model(upstream_of(provider, stub, Part.STREAM))
            async with opened(settings) as house, client_of(house) as client:
                asked = client.chat.completions.stream(model="m", messages=ASKED, tools=[WEATHER])
                async with asked as stream:
                    final = await stream.get_final_completion()
                calls = final.choices[0].message.tool_calls
                assert calls is not None
                assert len({call.id for call in calls}) == 2
                assert {call.function.name for call in calls} == {"get_weather"}
                assert all(json.loads(call.function.arguments) == _ARGUMENTS for call in calls)
                assert final.choices[0].finish_reason == "tool_calls"

    play(scene)


# ---- What goes wrong: its own typed exceptions ------------------------------------------------------------


_FAILURES: Final[Mapping[Part, tuple[type[openai.APIStatusError], str]]] = {
    Part.REJECTED: (openai.BadRequestError, "invalid_request"),
    Part.UNAUTHORISED: (openai.InternalServerError, "upstream_misconfigured"),
    Part.OVERLOADED: (openai.InternalServerError, "upstream_unavailable"),
    Part.THROTTLED: (openai.RateLimitError, "upstream_throttled"),
    Part.BLANK: (openai.UnprocessableEntityError, "unprocessable"),
    Part.HTML: (openai.InternalServerError, "upstream_unavailable"),
    Part.CUT_BODY: (openai.InternalServerError, "upstream_unavailable"),
}


@pytest.mark.parametrize(
    ("provider", "part"),
    [
        pytest.param(name, part, id=f"{name}-{part.name.lower()}")
        for name in PROVIDERS
        for part in _FAILURES
        if can(name, part)
    ],
)
def test_failures_are_its_typed_exceptions(play: Play, provider: str, part: Part) -> None:
    """And whatever an upstream quotes of its key never reaches a client."""
    kind, code = _FAILURES[part]

    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        with pytest.raises(kind) as caught:
            await client.chat.completions.create(model="m", messages=ASKED)
        assert caught.value.code == code
        assert caught.value.request_id is not None
        assert KEY not in caught.value.response.text
        assert isinstance(caught.value.body, dict)
        assert set(caught.value.body) == {"message", "type", "param", "code"}

    # Its timeout is the deadline here: a provider that asks for more time than that is not waited for.
    act_with(play, provider, part, act, max_retries=0, timeout=RETRY_AFTER_S - 1)


def test_an_unknown_model_is_not_found(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model({"provider": "simulated"})) as house, client_of(house) as client:
            with pytest.raises(openai.NotFoundError) as caught:
                await client.chat.completions.create(model="nobody", messages=ASKED)
            assert caught.value.code == "not_found"
            assert caught.value.param == "model"

    play(scene)


def test_keys_are_told_in_its_typed_exceptions(play: Play) -> None:
    """Carried as the client carries them; what a key may not do is not what the request did wrong."""

    async def scene() -> None:
        async with keyed_door() as door:
            text = await door.key(models=("m",), requests_per_minute=2)
            settings = one_model({"provider": "simulated", "latency_s": 0})
            async with opened(settings, access=door.access) as house:
                async with client_of(house, max_retries=0) as stranger:
                    with pytest.raises(openai.AuthenticationError) as caught:
                        await stranger.chat.completions.create(model="m", messages=ASKED)
                    assert caught.value.code == "unauthorized"
                    with pytest.raises(openai.AuthenticationError):
                        await stranger.models.list()
                async with client_of(house, max_retries=0, api_key=text) as client:
                    await client.chat.completions.create(model="m", messages=ASKED)
                    with pytest.raises(openai.PermissionDeniedError) as forbidden:
                        await client.chat.completions.create(model="simulated", messages=ASKED)
                    assert forbidden.value.code == "model_not_allowed"
                    with pytest.raises(openai.RateLimitError) as limited:
                        await client.chat.completions.create(model="m", messages=ASKED)
                    assert limited.value.code == "rate_limited"
                    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 60

    play(scene)


@every(Part.CUT_STREAM)
def test_a_stream_that_breaks_raises_in_the_client(play: Play, provider: str) -> None:
    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        said = ""
        stream = await client.chat.completions.create(model="m", messages=ASKED, stream=True)
        with pytest.raises(openai.APIError) as caught:  # noqa: PT012 - it breaks somewhere in there
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
        assert said
        assert SAID.startswith(said)
        assert caught.value.code == "upstream_unavailable"

    act_with(play, provider, Part.CUT_STREAM, act)


# ---- Its rules of retrying ----------------------------------------------------------------------------------


def _counting(house: House) -> list[float]:
    """When requests came to the gateway."""
    arrivals: list[float] = []
    interpose(house, lambda _: arrivals.append(time.monotonic()))
    return arrivals


@pytest.mark.parametrize(
    "part", [Part.REJECTED, Part.UNAUTHORISED, Part.OVERLOADED, Part.BLANK, Part.CUT_BODY]
)
def test_a_final_error_is_not_retried_by_the_client(play: Play, part: Part) -> None:
    """The gateway has tried as often as it helps: three clients' attempts times three of ours would be a storm."""

    async def act(client: AsyncOpenAI, stub: Stub, house: House) -> None:
        arrivals = _counting(house)
        with pytest.raises(openai.APIStatusError) as caught:
            await client.chat.completions.create(model="m", messages=ASKED)
        assert caught.value.response.headers["x-should-retry"] == "false"
        assert len(arrivals) == 1

    act_with(play, "openai", part, act, max_retries=2)


def test_a_refusal_is_retried_when_the_gateway_said(play: Play) -> None:
    """A 429 carries a wait, the client waits exactly that long, and is served."""

    async def scene() -> None:
        busy = {"provider": "simulated", "latency_s": 0.3, "slots": 1, "depth": 1}
        async with opened(one_model(busy)) as house, client_of(house, max_retries=2) as client:
            waits: list[int] = []
            original = client._client.send

            async def watched(*args: Any, **kwargs: Any) -> Any:
                response = await original(*args, **kwargs)
                if response.status_code == 429:
                    waits.append(int(response.headers["retry-after-ms"]))
                return response

            client._client.send = watched  # type: ignore[method-assign]
            # Once something is measured the wait is about a second, not half a minute.
            await client.chat.completions.create(model="m", messages=ASKED)
            fillers = [
                asyncio.create_task(client.chat.completions.create(model="m", messages=ASKED))
                for _ in range(2)
            ]
            await until(lambda: house.gateway.status().rt_queue == 1)
            arrivals = _counting(house)
            asked = asyncio.create_task(client.chat.completions.create(model="m", messages=ASKED))
            await asyncio.gather(*fillers)
            assert (await asked).choices[0].message.content
            assert len(arrivals) == 2
            assert arrivals[1] - arrivals[0] >= waits[0] / 1000

    play(scene)


def test_a_503_is_retried_when_the_gateway_said(play: Play) -> None:
    """A process that goes away says so; behind a balancer the next attempt meets another one."""

    async def scene() -> None:
        async with (
            opened(one_model({"provider": "simulated", "latency_s": 0})) as house,
            client_of(house, max_retries=1) as client,
        ):
            arrivals = _counting(house)
            house.serving._closing.set()
            asked = asyncio.create_task(client.chat.completions.create(model="m", messages=ASKED))
            await until(lambda: len(arrivals) == 1)
            await asyncio.sleep(0.05)
            house.serving._closing.clear()
            assert (await asked).choices[0].message.content
            assert len(arrivals) == 2
            assert arrivals[1] - arrivals[0] >= 1.0

    play(scene)
