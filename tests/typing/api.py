"""Checked by mypy, never run: the types users rely on."""

from collections.abc import Iterator, Sequence
from typing import assert_type

import headgate
from headgate.client import AsyncClient, Client


async def calls(gateway: headgate.Gateway) -> None:
    reply = await gateway.complete(model="m", messages=[{"role": "user", "content": "Hi"}], temperature=0.2)
    assert_type(reply, headgate.Reply)
    assert_type(reply.content, str | None)
    many = await gateway.complete_many([{"messages": []}], model="m")
    assert_type(many, list[headgate.Reply | headgate.HeadgateError])
    embedded = await gateway.embed(model="m", input="Hi", dimensions=8)
    assert_type(embedded, headgate.Reply)
    assert_type(embedded.vectors, Sequence[Sequence[float]])
    async with gateway.stream(model="m", messages=[]) as stream:
        async for chunk in stream:
            assert_type(chunk, headgate.Chunk)
    async with gateway.hold_slot("m", "batch") as slot:
        assert_type(slot, headgate.HeldSlot)
        assert_type(slot.wait_s, float)


async def opening() -> None:
    async with headgate.open({"models": {}}) as gateway:
        assert_type(gateway, headgate.Gateway)


def scripts() -> None:
    with headgate.open_blocking("headgate.yaml") as gateway:
        assert_type(gateway.complete(model="m", messages=[]), headgate.Reply)
        assert_type(gateway.embed(model="m", input=["Hi"]), headgate.Reply)


async def from_afar(client: AsyncClient) -> None:
    assert_type(await client.submit("t", {"a": 1}, priority=3), headgate.Job)
    async for job in client.jobs(state="pending"):
        assert_type(job, headgate.Job)


def scripts_from_afar() -> None:
    """The facade keeps the types of what it stands for."""
    with Client() as client:
        assert_type(client.submit("t", {"a": 1}), headgate.Job)
        assert_type(client.wait("id", timeout=3), headgate.Job)
        assert_type(client.jobs(), Iterator[headgate.Job])
        assert_type(client.dead_letters.list(task="t"), Iterator[headgate.DeadLetter])


def policies(error: Exception) -> None:
    assert_type(headgate.RetryPolicy.bedrock(), headgate.RetryPolicy)
    assert_type(headgate.RetryPolicy.web().get_delay(0), float)
    assert_type(headgate.classify(error), headgate.Failure)
