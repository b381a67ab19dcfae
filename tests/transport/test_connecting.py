"""From a name to a connection: several addresses, nobody there, and certificates that do not fit."""

import asyncio
import socket
from pathlib import Path

import pytest
from transport.certificates import Certificates
from transport.wire_stage import OK, Peer, Play, always, eventually, serving

from headgate.core.errors import SettingsError
from headgate.core.failures import FailureKind
from headgate.transport import Endpoint, Limits, Transport
from headgate.transport.errors import CertificateRefused, ConnectFailed, ConnectTimedOut
from headgate.transport.names import Resolve


def resolving_to(*addresses: str) -> Resolve:
    async def resolve(host: str, port: int) -> list[str]:
        return list(addresses)

    return resolve


async def ask(transport: Transport, url: str, limits: Limits | None = None) -> bytes:
    with await transport.send(Endpoint(url), limits=limits or Limits()) as response:
        return await response.read()


def unused_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_nobody_there_is_told_with_the_place(play: Play) -> None:
    port = unused_port()

    async def scene() -> None:
        transport = Transport()
        with pytest.raises(
            ConnectFailed, match=rf"http://127\.0\.0\.1:{port} could not be reached"
        ) as caught:
            await ask(transport, f"http://127.0.0.1:{port}/secret?key=1")
        assert "secret" not in str(caught.value)
        assert isinstance(caught.value.__cause__, ConnectionRefusedError)
        await transport.aclose()

    play(scene)


def test_a_name_nobody_knows_is_told(play: Play) -> None:
    async def scene() -> None:
        transport = Transport()
        with pytest.raises(ConnectFailed, match=r"the name nobody\.invalid could not be looked up"):
            await ask(transport, "http://nobody.invalid/")
        await transport.aclose()

    play(scene)


def test_a_name_without_addresses_is_told(play: Play) -> None:
    async def scene() -> None:
        transport = Transport(resolve=resolving_to())
        with pytest.raises(ConnectFailed, match="has no address"):
            await ask(transport, "http://empty.example/")
        await transport.aclose()

    play(scene)


def test_when_the_first_address_refuses_the_next_is_tried(play: Play) -> None:
    async def scene() -> None:
        async with serving(always()) as server:
            transport = Transport(resolve=resolving_to("127.0.0.9", "127.0.0.8", "127.0.0.1"))
            assert await ask(transport, server.url(host="several.example")) == b"hi"
            await transport.aclose()

    play(scene)


def test_an_address_that_is_silent_leaves_time_for_the_next(play: Play) -> None:
    async def scene() -> None:
        listener = await asyncio.start_server(_answer, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        # A listener whose queue is full takes no connection and refuses none.
        with socket.socket() as blocked:
            blocked.bind(("127.0.0.2", port))
            blocked.listen(0)
            fillers = [socket.socket() for _ in range(4)]
            for sock in fillers:
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.2", port))
            transport = Transport(resolve=resolving_to("127.0.0.2", "127.0.0.1"))
            assert await ask(transport, f"http://two.example:{port}/", Limits(connect_s=0.6)) == b"hi"
            blocked_only = Transport(resolve=resolving_to("127.0.0.2"))
            with pytest.raises(ConnectTimedOut):
                await ask(blocked_only, f"http://two.example:{port}/", Limits(connect_s=0.2))
            for sock in fillers:
                sock.close()
            listener.close()
            await transport.aclose()
            await blocked_only.aclose()

    play(scene)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(OK)
    await writer.drain()
    writer.close()


def test_tls_with_a_known_authority_and_only_http11(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        seen: list[str | None] = []

        async def script(peer: Peer) -> None:
            seen.append(peer.writer.get_extra_info("ssl_object").selected_alpn_protocol())
            await always()(peer)

        async with serving(script, tls=certs.server) as server:
            transport = Transport(ca_file=certs.ca_file)
            for _ in range(20):
                assert await ask(transport, server.url(host="localhost")) == b"hi"
            assert seen == ["http/1.1"]
            await transport.aclose()

    play(scene)


def test_a_large_body_and_a_large_answer_over_tls(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        async with serving(
            always(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n" + b"y" * 3_000_000), tls=certs.server
        ) as server:
            transport = Transport(ca_file=certs.ca_file)
            for _ in range(3):
                with await transport.send(Endpoint(server.url()), b"x" * 3_000_000) as response:
                    assert len(await response.read()) == 3_000_000
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


def test_a_server_nobody_vouches_for_is_refused_with_advice(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        async with serving(always(), tls=certs.server) as server:
            transport = Transport()
            with pytest.raises(CertificateRefused, match=r"not accepted: .*ca_file") as caught:
                await ask(transport, server.url(host="localhost"))
            assert caught.value.failure.kind is FailureKind.MISCONFIGURED
            assert server.requests == []
            await transport.aclose()

    play(scene)


def test_a_certificate_for_another_host_is_refused(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        async with serving(always(), tls=certs.server) as server:
            transport = Transport(ca_file=certs.ca_file, resolve=resolving_to("127.0.0.1"))
            with pytest.raises(CertificateRefused, match=r"other\.example"):
                await ask(transport, server.url(host="other.example"))
            await transport.aclose()

    play(scene)


def test_https_to_a_server_without_tls_is_told(play: Play) -> None:
    async def plain(peer: Peer) -> None:
        await peer.reader.read(10)
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async def scene() -> None:
        async with serving(plain) as server:
            transport = Transport()
            with pytest.raises(ConnectFailed, match=r"broke off the TLS handshake|could not be reached"):
                await ask(transport, f"https://127.0.0.1:{server.port}/")
            await transport.aclose()

    play(scene)


def test_a_cancelled_call_over_tls_is_seen_at_once(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        async def hanging(peer: Peer) -> None:
            await peer.request()
            await peer.gone()

        async with serving(hanging, tls=certs.server) as server:
            transport = Transport(ca_file=certs.ca_file)
            task = asyncio.create_task(ask(transport, server.url(host="localhost")))
            await eventually(lambda: bool(server.peers))
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await eventually(lambda: server.peers[0].ended, 1)
            await transport.aclose()

    play(scene)


def test_a_ca_file_that_cannot_be_used_is_a_mistake_in_the_settings(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"ca_file .*absent\.pem cannot be used: No such file"):
        Transport(ca_file=str(tmp_path / "absent.pem"))
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(SettingsError, match=r"ca_file .*empty\.pem cannot be used"):
        Transport(ca_file=str(empty))
