"""However serving ends: the port is closed, and nobody is left working."""

import asyncio
import socket
from pathlib import Path

import pytest
from server.http.front_stage import Play
from server.stage import opened
from server.upstreams import one_model

from headgate import StoreUnavailable, wiring
from headgate.server.http import Server
from headgate.wiring.serving import serve


def test_a_worker_that_cannot_start_leaves_no_open_port(play: Play, tmp_path: Path) -> None:
    """A file stands where the nodes' locks should be: serving begins before that is found out."""
    (tmp_path / "nodes").write_text("not a folder")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = {"listen": f"127.0.0.1:{port}", "data_dir": str(tmp_path)}

    async def scene() -> None:
        with pytest.raises(StoreUnavailable, match="nodes"):
            async with serve(wiring.read_settings(settings, env={})):
                pass
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)

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
