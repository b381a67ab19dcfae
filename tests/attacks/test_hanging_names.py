"""Names that a tenant gives and whose name server never answers, against everybody else's connections."""

import asyncio
import json
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from attacks.name_server import NameServer, name_server
from observe.receivers_stage import Receiver
from server.locked_stage import Locked, locked
from transport.certificates import Certificates
from transport.conftest import certs, play
from transport.wire_stage import OK, Peer, Play, eventually, serving

from headgate import FetchRules, fetch
from headgate.core.failures import FailureKind
from headgate.transport import Endpoint, Fetcher, Limits, Transport
from headgate.transport.errors import CertificateRefused, ConnectFailed, ConnectTimedOut

__all__ = ["certs", "play"]
HANGING_WEBHOOKS = 24
"""More than any pool of an event loop has threads on the machines of today's tests."""
ANSWER = json.dumps(
    {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}
        ],
    }
).encode()
COMPLETION = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(ANSWER), ANSWER)
)
PATIENCE_S = 15.0
CHAT = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    with name_server(monkeypatch) as server:
        yield server


@pytest.fixture
def attack(play: Play, names: NameServer) -> Play:
    """The name server comes back before the loop closes: threads that hang would keep that waiting."""

    def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def ended() -> None:
            try:
                await scene()
            finally:
                names.end()

        play(ended)

    return run


async def one_answer(peer: Peer) -> None:
    """Each call comes over a connection, and so with a lookup, of its own."""
    await peer.request()
    await peer.send(COMPLETION)
    peer.writer.close()


async def submit(gate: Locked, key: str, webhook: str) -> None:
    body = {"task": "chat", "input": CHAT, "webhook": webhook}
    answer = await gate.post("/v1/jobs", body, f"Authorization: Bearer {key}")
    assert answer.status == 202, answer.body


def settings(database: str, upstream: str) -> dict[str, Any]:
    remote = {"provider": "openai", "model": "x", "base_url": upstream, "api_key": "k"}
    timeouts = {"connect_s": 3}
    return {
        "database": database,
        "models": {
            "far": {"upstreams": [remote], "retry": {"max_attempts": 1}, "timeouts": timeouts},
            "simulated/*": {"upstreams": [{"provider": "simulated"}]},
        },
        "webhooks": {"allow_private": True},
        "work": True,
    }


def test_webhooks_of_one_tenant_whose_names_hang_keep_no_call_and_no_webhook_of_others_waiting(
    attack: Play, names: NameServer, database: str
) -> None:
    async def scene() -> None:
        receiver = Receiver(asyncio.get_running_loop().time)
        await receiver.up()
        async with (
            serving(one_answer) as upstream,
            locked(**settings(database, f"http://upstream.test:{upstream.port}/v1")) as gate,
        ):
            attacker, other = await gate.key(tenant="a"), await gate.key(tenant="b")
            for number in range(HANGING_WEBHOOKS):
                await submit(gate, attacker, f"http://hanging-{number}.test/")
            await eventually(lambda: names.unanswered >= 6, PATIENCE_S)
            for _ in range(4):
                answer = await gate.chat(other, model="far")
                assert answer.status == 200, answer.body
            assert len(upstream.peers) == 4, "each call has a connection of its own"
            await submit(gate, other, f"http://receiver.test:{receiver.port}/hook")
            await eventually(lambda: len(receiver.received) == 1, PATIENCE_S)
            assert names.unanswered, "the attacker's lookups hang to the end"
        receiver.close()

    attack(scene)


def test_pages_and_feeds_whose_names_hang_are_bounded_for_each_tenant_apart(
    attack: Play, names: NameServer
) -> None:
    async def scene() -> None:
        async with serving(one_answer) as site:

            def rules(tenant: str | None) -> FetchRules:
                return FetchRules(
                    allow_private=True, ports=frozenset({80, site.port}), connect_s=3, tenant=tenant
                )

            hanging = [
                asyncio.create_task(fetch(f"http://hanging-{number}.test/", rules("a")))
                for number in range(HANGING_WEBHOOKS)
            ]
            await eventually(lambda: names.unanswered >= 6, PATIENCE_S)
            page = await fetch(f"http://page.test:{site.port}/", rules("b"))
            feed = await fetch(f"http://feed.test:{site.port}/", rules(None))
            assert (page.status, feed.status) == (200, 200)
            assert len(names.asked) <= 8 + 2, "of one tenant's lookups only a few are under way at a time"
            for task in hanging:
                task.cancel()
            await asyncio.gather(*hanging, return_exceptions=True)

    attack(scene)


def test_an_upstream_is_reached_at_its_last_addresses_while_its_name_server_hangs_or_fails(
    attack: Play, names: NameServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")

    async def scene() -> None:
        async with serving(one_answer) as upstream:
            transport = Transport()
            place = Endpoint(f"http://upstream.test:{upstream.port}/")

            async def ask() -> int:
                with await transport.send(place, limits=Limits(connect_s=3)) as response:
                    await response.read()
                    return response.status

            assert await ask() == 200
            names.fails = True
            assert [await ask(), await ask()] == [200, 200]
            names.fails = False
            assert await ask() == 200
            names.hangs = lambda host: True
            assert [await ask() for _ in range(3)] == [200] * 3
            assert names.unanswered == 1, "a lookup that hangs is not begun again and again"
            await transport.aclose()

    attack(scene)
    told = [record.getMessage() for record in caplog.records if "upstream.test" in record.getMessage()]
    failed, again, hung = told
    assert failed == (
        "the name upstream.test could not be looked up (Temporary failure in name resolution):"
        " its last known addresses stay in use (127.0.0.1)"
    )
    assert again == "the name upstream.test can be looked up again"
    assert "no answer yet" in hung


def test_a_name_that_was_never_found_is_refused_and_asked_for_again(attack: Play, names: NameServer) -> None:
    async def scene() -> None:
        async with serving(one_answer) as upstream:
            transport = Transport()
            place = Endpoint(f"http://upstream.test:{upstream.port}/")
            names.fails = True
            with pytest.raises(ConnectFailed, match="could not be looked up: Temporary failure"):
                await transport.send(place)
            names.fails = False
            with await transport.send(place) as response:
                assert response.status == 200
            names.hangs = lambda host: True
            with pytest.raises(ConnectTimedOut, match="could not be looked up in time"):
                await transport.send(Endpoint("http://other.test/"), limits=Limits(connect_s=0.2))
            await transport.aclose()

    attack(scene)


def test_certificates_are_read_once_and_not_by_the_event_loop(
    certs: Certificates, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of authorities take tens of milliseconds, in which nobody else is served."""
    readers: list[int] = []
    read = ssl.create_default_context

    def counted(*arguments: Any, **options: Any) -> ssl.SSLContext:
        readers.append(threading.get_ident())
        return read(*arguments, **options)

    monkeypatch.setattr(ssl, "create_default_context", counted)

    async def greeted(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)

    async def scene() -> None:
        async with serving(greeted, tls=certs.server) as server:
            transports = Transport(), Transport()
            for transport in transports:
                with pytest.raises(CertificateRefused) as caught:
                    await transport.send(Endpoint(server.url(host="localhost")))
                assert caught.value.failure.kind is FailureKind.MISCONFIGURED
                await transport.aclose()
            rules = FetchRules(allow_private=True, ports=None)
            for _ in range(3):
                with pytest.raises(CertificateRefused):
                    await Fetcher(rules).fetch(server.url(host="localhost"))
        assert threading.get_ident() not in readers
        assert len(readers) <= 1, "the process may have read them before this test"

    play(scene)
