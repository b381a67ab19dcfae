"""Addresses of webhooks that lead where nobody from outside may look, in all spellings: none of them is connected to."""

import asyncio
import socket
from typing import Any, Final

import pytest
from apps.bookmarks.test_hostile_addresses import DENIED, PORTS, REBINDING, SPELLED, Names, watched
from attacks.tenants import bearer
from conftest import Figure
from observe.receivers_stage import Receiver
from server.locked_stage import BODY, Locked, locked
from transport.wire_stage import eventually

WEBHOOKS: Final = "headgate.webhook"
PATIENCE_S: Final = 30.0


def addresses() -> list[str]:
    hosts = [f"http://{host}/" for host in DENIED] + [f"https://{host}/" for host in PORTS]
    return [*hosts, *SPELLED, *(f"http://{name}.example/" for name in REBINDING)]


async def deliveries(gate: Locked) -> list[Any]:
    inside = gate.house.gateway
    return [await inside.jobs.get(job.id) for job in await inside.webhooks.list(limit=1)]


async def try_it(gate: Locked, key: str, url: str) -> int:
    """Submit a job with this webhook; if it is accepted, wait until its delivery was tried."""
    before = {job.id for job in await deliveries(gate)}
    answer = await gate.post("/v1/jobs", {"task": "chat", "input": BODY, "webhook": url}, bearer(key))
    if answer.status == 202:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                found = [job for job in await deliveries(gate) if job.id not in before]
                if found and found[0].error:
                    break
                await asyncio.sleep(0.01)
    return answer.status


def test_hostile_addresses_of_webhooks_are_refused_or_never_connected_to(
    monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    statuses: dict[str, int] = {}

    async def scene() -> None:
        async with locked(work=True) as gate:
            key = await gate.key()
            monkeypatch.setattr(socket, "getaddrinfo", Names())
            with watched() as reached:
                for url in addresses():
                    statuses[url] = await try_it(gate, key, url)
            own = ("127.0.0.1", gate.house.port)
            assert own in reached, "or the connections are not seen"
            assert [place for place in reached if place != own] == []

    asyncio.run(scene())
    assert set(statuses.values()) == {202, 400}
    accepted = sum(status == 202 for status in statuses.values())
    figure(
        "hostile addresses of webhooks",
        f"{len(statuses)}: {accepted} accepted, {len(statuses) - accepted} refused with 400, 0 connections",
    )


def test_an_address_that_is_allowed_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the test above proves nothing."""

    async def scene() -> None:
        receiver = Receiver(asyncio.get_running_loop().time)
        await receiver.up()
        async with locked(work=True, webhooks={"allow_private": True}) as gate:
            key = await gate.key()
            with watched() as reached:
                body = {"task": "chat", "input": BODY, "webhook": receiver.url()}
                assert (await gate.post("/v1/jobs", body, bearer(key))).status == 202
                await eventually(lambda: len(receiver.received) == 1, PATIENCE_S)
            port = int(receiver.url().split(":")[2].split("/")[0])
            assert ("127.0.0.1", port) in reached
        receiver.close()

    asyncio.run(scene())


def test_the_list_is_long_enough() -> None:
    assert len(set(addresses())) >= 150
