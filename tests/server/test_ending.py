"""However serving ends: the port is closed, and nobody is left working."""

import asyncio

import pytest
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import one_model

from headgate import wiring
from headgate.gateway import Gateway
from headgate.server.http import Server
from headgate.wiring.serving import serve


def test_a_worker_that_cannot_start_leaves_no_open_port(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    listening: list[tuple[Server, int]] = []
    listen = Server.start

    async def noted(server: Server, host: str, port: int) -> int:
        listening.append((server, await listen(server, host, port)))
        return listening[0][1]

    async def broken(gateway: Gateway) -> None:
        raise RuntimeError("no worker today")

    async def scene() -> None:
        monkeypatch.setattr(Server, "start", noted)
        monkeypatch.setattr(Gateway, "work", broken)
        with pytest.raises(RuntimeError, match="no worker today"):
            async with serve(wiring.read_settings({"listen": "127.0.0.1:0"}, env={})):
                pass
        [(server, port)] = listening
        try:
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
        finally:
            await server.aclose()  # Left open, it would let no loop end.

    play(scene)


def test_a_drain_that_breaks_still_waits_for_the_worker(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(server: Server, drain_s: float) -> None:
        raise RuntimeError("no drain today")

    async def scene() -> None:
        async with opened(one_model({"provider": "simulated", "latency_s": 0}), work=True) as house:
            durable, ended = house.gateway.durable, []
            stop_working = durable.stop_working

            async def stopping(drain_s: float) -> None:
                await stop_working(drain_s)
                ended.append(drain_s)

            with monkeypatch.context() as patched:
                patched.setattr(Server, "drain", broken)
                patched.setattr(durable, "stop_working", stopping)
                with pytest.raises(RuntimeError, match="no drain today"):
                    await house.serving.stop(1.0)
            assert ended == [1.0]

    play(scene)
