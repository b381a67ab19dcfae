"""The client against the real gateway on a real port."""

import asyncio
from typing import Any

import pytest
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import one_model

from headgate.client import AsyncClient, Client
from headgate.core.errors import (
    DeadlineExceeded,
    HeadgateError,
    InvalidRequest,
    StreamCut,
    UnknownModel,
    UpstreamUnavailable,
)


def answering(**options: Any) -> dict[str, Any]:
    return one_model({"provider": "simulated", "latency_s": 0, "answers": {"Hi": "hello there"}, **options})


def said(completion: dict[str, Any]) -> Any:
    return completion["choices"][0]["message"]["content"]


def test_a_chat_is_answered_from_one_text_from_messages_and_from_a_body(play: Play) -> None:
    async def scene() -> None:
        messages = [{"role": "user", "content": "Hi"}]
        async with opened(answering()) as house, AsyncClient(house.url) as client:
            assert said(await client.chat("Hi", model="m")) == "hello there"
            assert said(await client.chat(messages, model="m")) == "hello there"
            assert said(await client.chat(body={"model": "m", "messages": messages})) == "hello there"
            with pytest.raises(InvalidRequest, match="messages or a whole body"):
                await client.chat()

    play(scene)


def test_one_key_is_one_answer(play: Play) -> None:
    async def scene() -> None:
        async with opened(answering(answers={})) as house, AsyncClient(house.url) as client:
            first = await client.chat("Hi", model="m", idempotency_key="click")
            assert await client.chat("Hi", model="m", idempotency_key="click") == first

    play(scene)


def test_a_stream_is_its_chunks(play: Play) -> None:
    async def scene() -> None:
        async with opened(answering()) as house, AsyncClient(house.url) as client:
            chunks = [chunk async for chunk in client.stream("Hi", model="m")]
            words = [
                chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"]
            ]
            assert "".join(words) == "hello there"

    play(scene)


def test_a_stream_that_is_refused_is_the_refusal(play: Play) -> None:
    async def scene() -> None:
        async with opened(answering()) as house, AsyncClient(house.url) as client:
            with pytest.raises(UnknownModel):
                await anext(client.stream("Hi", model="nobody"))

    play(scene)


def test_a_stream_left_early_frees_its_slot(play: Play) -> None:
    async def scene() -> None:
        slow = answering(latency_s=30, answers={})
        async with opened(slow) as house, AsyncClient(house.url) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(client.stream("Hi", model="m")), 0.2)
            async with asyncio.timeout(5):
                while not house.all_free:  # noqa: ASYNC110 - the gateway does not tell
                    await asyncio.sleep(0.01)

    play(scene)


def test_models_status_and_embeddings(play: Play) -> None:
    async def scene() -> None:
        async with opened(answering()) as house, AsyncClient(house.url + "/") as client:
            assert "m" in await client.models()
            assert (await client.status())["accepting"] is True
            vectors = (await client.embed(["a", "b"], model="m"))["data"]
            assert len(vectors) == 2

    play(scene)


def test_the_gateway_hears_the_deadline(play: Play) -> None:
    async def scene() -> None:
        async with opened(answering(latency_s=30)) as house, AsyncClient(house.url) as client:
            with pytest.raises(DeadlineExceeded):
                await client.chat("Hi", model="m", timeout_s=0.3)
            async with asyncio.timeout(5):
                while not house.all_free:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)

    play(scene)


def test_an_upstream_that_is_down_is_told_and_not_asked_again_by_us(play: Play) -> None:
    """The gateway has retried already: a second layer would multiply the load."""

    async def scene() -> None:
        down = one_model({"provider": "simulated", "latency_s": 0, "model": "down"})
        async with opened(down) as house, AsyncClient(house.url) as client:
            with pytest.raises(UpstreamUnavailable) as caught:
                await client.chat("Hi", model="m")
            assert caught.value.attempts == 2

    play(scene)


def test_a_script_has_the_same_client_without_await(play: Play) -> None:
    async def scene() -> None:
        async with opened(answering()) as house:
            assert await asyncio.to_thread(script, house.url) == ("hello there", "hello there", True)

    def script(url: str) -> tuple[Any, str, bool]:
        with Client(url) as client:
            words = [
                chunk["choices"][0]["delta"].get("content") or ""
                for chunk in client.stream("Hi", model="m")
                if chunk["choices"]
            ]
            with pytest.raises(UnknownModel):
                client.chat("Hi", model="nobody")
            return said(client.chat("Hi", model="m")), "".join(words), "m" in client.models()

    play(scene)


def test_a_client_that_is_not_open_says_so() -> None:
    with pytest.raises(RuntimeError, match="with"):
        Client().models()


def test_the_environment_names_gateway_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_URL", "http://gateway.example:1234")
    assert AsyncClient().url == "http://gateway.example:1234"
    assert AsyncClient("http://other:1").url == "http://other:1"
    monkeypatch.delenv("HEADGATE_URL")
    assert AsyncClient().url == "http://127.0.0.1:8400"


@pytest.mark.parametrize(("url", "key"), [("ftp://x", None), ("http://x", "key\nwith a line break")])
def test_what_cannot_be_asked_is_told_at_once(url: str, key: str | None) -> None:
    with pytest.raises(HeadgateError, match="cannot be asked"):
        AsyncClient(url, api_key=key)


def test_a_stream_that_breaks_off_is_no_short_success() -> None:
    """Without [DONE] an answer is not whole."""

    async def main() -> None:
        async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 30\r\n\r\ndata: {"choices": []}\n\n')
            await writer.drain()
            writer.close()

        async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with AsyncClient(url) as client:
                stream = client.stream("Hi", model="m")
                assert await anext(stream) == {"choices": []}
                with pytest.raises(StreamCut):
                    await anext(stream)

    asyncio.run(main())
