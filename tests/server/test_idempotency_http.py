"""`Idempotency-Key` over HTTP: the same key and body, the same answer and one call, whole or streamed."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from providers.stubs.openai import DONE, OpenAIStub, completion, error, events, stream, words
from providers.stubs.scripted import CUT, HANG, Reply
from server.http.front_stage import Answer, Play, Wire
from server.stage import House, opened
from server.upstreams import (
    ASKED,
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    ask,
    asking,
    connected,
    one_model,
    openai_upstream,
    until,
)

from headgate.calls import keyed_stream
from headgate.core.call import Format
from headgate.server.inference.body import read_body

KEY: Final = "Idempotency-Key: k1"
PIECES: Final = events(*words())
ANSWERS: Final = {False: completion(), True: stream(PIECES)}
both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])


@asynccontextmanager
async def house_with(*replies: Reply, **model: Any) -> AsyncIterator[tuple[House, OpenAIStub]]:
    async with OpenAIStub(*replies) as stub, opened(one_model(openai_upstream(stub), **model)) as house:
        yield house, stub


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


@both_ways
def test_the_same_answer_is_told_again(play: Play, streamed: bool) -> None:
    async def scene() -> None:
        async with house_with(ANSWERS[streamed]) as (house, stub):
            first = await ask(house, CHAT, KEY, stream=streamed)
            again = await ask(house, CHAT, KEY, stream=streamed)
            assert first.status == again.status == 200
            assert first.body == again.body == ANSWERS[streamed].body
            assert "idempotent-replayed" not in first.headers
            assert again.headers["idempotent-replayed"] == "true"
            assert again.headers["x-request-id"] != first.headers["x-request-id"]
            assert again.headers["x-headgate-upstream"] == first.headers["x-headgate-upstream"]
            assert again.headers["content-type"] == first.headers["content-type"]
            assert stub.calls == 1

    play(scene)


@both_ways
def test_a_different_request_under_the_same_key_is_409(play: Play, streamed: bool) -> None:
    """Also while the first one still runs, and it does not disturb that one."""

    async def scene() -> None:
        hanging = stream(PIECES[:2], HANG) if streamed else Reply(silent=True)
        async with house_with(ANSWERS[streamed], hanging) as (house, stub):
            await ask(house, CHAT, KEY, stream=streamed)
            other = await ask(house, CHAT, KEY, stream=streamed, temperature=0.5)
            assert code(other) == (409, "idempotency_key_mismatch")
            assert other.headers["x-should-retry"] == "false"
            wire = await connected(house)
            await wire.send(asking(CHAT, "Idempotency-Key: k2", stream=streamed))
            await until(lambda: stub.calls == 2)
            other = await ask(house, CHAT, "Idempotency-Key: k2", stream=streamed, temperature=0.5)
            assert code(other) == (409, "idempotency_key_mismatch")
            assert stub.calls == 2
            assert not stub.left.is_set()
            wire.reset()

    play(scene)


@both_ways
def test_a_stream_and_a_whole_answer_are_two_requests(play: Play, streamed: bool) -> None:
    """The same question, asked in the other way, has another body."""

    async def scene() -> None:
        async with house_with(ANSWERS[streamed]) as (house, stub):
            assert (await ask(house, CHAT, KEY, stream=streamed)).status == 200
            other = await ask(house, CHAT, KEY, stream=not streamed)
            assert code(other) == (409, "idempotency_key_mismatch")
            assert stub.calls == 1

    play(scene)


def test_the_status_of_a_mismatch_is_the_operators_choice(play: Play) -> None:
    async def scene() -> None:
        async with OpenAIStub(ANSWERS[False]) as stub:
            settings = {**one_model(openai_upstream(stub)), "idempotency": {"mismatch_status": 422}}
            async with opened(settings) as house:
                await ask(house, CHAT, KEY)
                assert code(await ask(house, CHAT, KEY, n=2)) == (422, "idempotency_key_mismatch")

    play(scene)


@both_ways
def test_twenty_at_once_share_one_call(play: Play, streamed: bool) -> None:
    async def scene() -> None:
        reply = Reply(ANSWERS[streamed].body, headers=ANSWERS[streamed].headers, end_after_s=0.2)
        async with house_with(reply) as (house, stub):
            answers = await asyncio.gather(*(ask(house, CHAT, KEY, stream=streamed) for _ in range(20)))
            assert {answer.status for answer in answers} == {200}
            assert {answer.body for answer in answers} == {reply.body}
            assert stub.calls == 1
            # A follower of a running stream gets its pieces as they come, and knows no more than the first.
            replayed = [answer for answer in answers if "idempotent-replayed" in answer.headers]
            assert len(replayed) == (0 if streamed else 19)

    play(scene)


async def _text(wire: Wire, until_bytes: int) -> bytes:
    """At least so many bytes of a streamed answer whose head was read."""
    read = b""
    async for chunk in wire.chunks():
        read += chunk
        if len(read) >= until_bytes:
            break
    return read


def test_who_follows_a_stream_reads_it_from_the_start_while_it_runs(play: Play) -> None:
    async def scene() -> None:
        beginning = b"".join(PIECES[:3])
        async with house_with(stream(PIECES[:3], HANG)) as (house, stub):
            wires = [await connected(house) for _ in range(3)]
            for number, wire in enumerate(wires):
                await wire.send(asking(CHAT, KEY, stream=True))
                async with asyncio.timeout(2):
                    assert (await wire.head())[0] == 200
                    assert await _text(wire, len(beginning)) == beginning
                assert stub.calls == 1, number
            # A stranger with another body changes nothing for them, nor for the next.
            assert code(await ask(house, CHAT, KEY, stream=True, n=2)) == (409, "idempotency_key_mismatch")
            late = await connected(house)
            await late.send(asking(CHAT, KEY, stream=True))
            async with asyncio.timeout(2):
                assert (await late.head())[0] == 200
                assert await _text(late, len(beginning)) == beginning
            for wire in [*wires, late]:
                wire.reset()
            await asyncio.wait_for(stub.left.wait(), 1)

    play(scene)


@both_ways
@pytest.mark.parametrize(
    ("failing", "status"),
    [
        (error(500), 502),
        (error(429, headers={"Retry-After": "1"}), 429),
        (error(401), 502),
        (error(400), 400),
    ],
    ids=["500", "429", "401", "400"],
)
def test_a_failed_outcome_frees_the_key(play: Play, failing: Reply, status: int, streamed: bool) -> None:
    """A stored failure would help nobody."""

    async def scene() -> None:
        retry = {"max_attempts": 1, "count_throttles": True}
        async with house_with(failing, ANSWERS[streamed], retry=retry) as (house, stub):
            headers = (KEY, "X-Headgate-Timeout: 5")
            assert (await ask(house, CHAT, *headers, stream=streamed)).status == status
            again = await ask(house, CHAT, *headers, stream=streamed)
            assert (again.status, again.body) == (200, ANSWERS[streamed].body)
            assert "idempotent-replayed" not in again.headers
            assert stub.calls == 2

    play(scene)


def test_a_stream_that_was_cut_is_not_kept(play: Play) -> None:
    """Its readers are told; who asks again gets a whole one."""

    async def scene() -> None:
        async with house_with(stream(PIECES[:3], CUT), ANSWERS[True]) as (house, stub):
            cut = await ask(house, CHAT, KEY, stream=True)
            assert cut.status == 200
            assert b"event: error" in cut.body
            assert DONE not in cut.body
            again = await ask(house, CHAT, KEY, stream=True)
            assert again.body == ANSWERS[True].body
            assert stub.calls == 2

    play(scene)


def test_a_stream_that_is_too_long_to_be_kept_is_cut(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without an end would fill the memory."""
    monkeypatch.setattr(keyed_stream, "MOST_KEPT_BYTES", 300)

    async def scene() -> None:
        long = Reply(b"".join(PIECES), headers=ANSWERS[True].headers, piece_bytes=100)
        async with house_with(long) as (house, _):
            answer = await ask(house, CHAT, KEY, stream=True)
            assert answer.status == 200
            assert b"event: error" in answer.body
            assert b"ask without one" in answer.body
            assert DONE not in answer.body
            assert house.all_free
            assert (await ask(house, CHAT, stream=True)).body == b"".join(PIECES)

    play(scene)


@both_ways
def test_a_refusal_at_the_gate_frees_the_key(play: Play, streamed: bool) -> None:
    async def scene() -> None:
        async with house_with(ANSWERS[streamed]) as (house, stub):
            await house.gateway.models.pause("m", by="ann")
            refused = await ask(house, CHAT, KEY, stream=streamed)
            assert code(refused) == (503, "upstream_unavailable")
            await house.gateway.models.resume("m")
            answer = await ask(house, CHAT, KEY, stream=streamed)
            assert answer.status == 200
            assert stub.calls == 1

    play(scene)


@both_ways
def test_quoted_and_bare_are_one_key(play: Play, streamed: bool) -> None:
    async def scene() -> None:
        async with house_with(ANSWERS[streamed]) as (house, stub):
            await ask(house, CHAT, 'Idempotency-Key: "k1"', stream=streamed)
            again = await ask(house, CHAT, KEY, stream=streamed)
            assert again.headers["idempotent-replayed"] == "true"
            assert stub.calls == 1

    play(scene)


@both_ways
def test_a_key_has_at_most_255_characters(play: Play, streamed: bool) -> None:
    async def scene() -> None:
        async with house_with(ANSWERS[streamed]) as (house, stub):
            for key in ("k" * 255, f'"{"q" * 255}"'):
                assert (await ask(house, CHAT, f"Idempotency-Key: {key}", stream=streamed)).status == 200
            for key in ("k" * 256, f'"{"q" * 256}"', '""', "a\tb"):
                refused = await ask(house, CHAT, f"Idempotency-Key: {key}", stream=streamed)
                assert code(refused) == (400, "invalid_request")
            assert stub.calls == 2

    play(scene)


def test_two_keys_at_once_are_refused(play: Play) -> None:
    """Which of them would be meant is anybody's guess."""

    async def scene() -> None:
        async with house_with(ANSWERS[False]) as (house, stub):
            refused = await ask(house, CHAT, KEY, "Idempotency-Key: k2")
            assert code(refused) == (400, "invalid_request")
            assert stub.calls == 0

    play(scene)


def test_a_key_belongs_to_its_route(play: Play) -> None:
    async def scene() -> None:
        async with opened(one_model({"provider": "simulated", "latency_s": 0})) as house:
            for path in (CHAT, COMPLETIONS, EMBEDDINGS):
                first, again = [await ask(house, path, KEY) for _ in range(2)]
                assert "idempotent-replayed" not in first.headers
                assert again.headers["idempotent-replayed"] == "true"
                assert json.loads(first.body) == json.loads(again.body)

    play(scene)


@both_ways
def test_a_sharer_whose_time_is_up_is_told_so(play: Play, streamed: bool) -> None:
    """409 with a wait, and the call goes on for the others."""

    async def scene() -> None:
        async with house_with(Reply(silent=True)) as (house, stub):
            wire = await connected(house)
            await wire.send(asking(CHAT, KEY, stream=streamed))
            await until(lambda: stub.calls == 1)
            late = await ask(house, CHAT, KEY, "X-Headgate-Timeout: 0.1", stream=streamed)
            assert code(late) == (409, "idempotency_in_progress")
            assert 1 <= int(late.headers["retry-after"]) <= 60
            assert not stub.left.is_set()
            wire.reset()
            await asyncio.wait_for(stub.left.wait(), 1)

    play(scene)


def test_a_reader_who_is_cancelled_while_it_leaves_is_gone_all_the_same(play: Play) -> None:
    """One who stayed counted would keep its request in memory for ever."""

    async def scene() -> None:
        async with house_with(ANSWERS[True]) as (house, _):
            await ask(house, CHAT, KEY, stream=True)
            body = json.dumps({**ASKED[CHAT], "stream": True}).encode()
            call = house.gateway.requests.begin(
                "r", "m", read_body(body, Format.CHAT).fields, size_bytes=len(body), stream=True
            )
            again = await house.gateway.keyed.stream(call, "k1", body, scope=Format.CHAT)
            assert [piece async for piece in again] == [ANSWERS[True].body]
            leaving = asyncio.create_task(again.aclose())
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait({leaving})
            assert leaving.cancelled()
            assert not house.gateway.keyed._live

    play(scene)
