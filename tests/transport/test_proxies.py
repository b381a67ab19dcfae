"""Proxies: who is reached through which, and both ways through one."""

import asyncio

import pytest
from transport.certificates import Certificates
from transport.wire_stage import OK, Peer, Play, Script, always, answering, serving

from headgate.core.errors import SettingsError
from headgate.core.failures import FailureKind
from headgate.transport import Endpoint, Origin, Proxies, Transport
from headgate.transport.endpoint import split_url
from headgate.transport.errors import BadResponse, CertificateRefused, ConnectFailed, ProxyRefused
from headgate.transport.proxies import Proxy

BOTH = {"HTTP_PROXY": "http://plain:3128", "HTTPS_PROXY": "http://secure:3128"}


def origin(url: str) -> Origin:
    return split_url(url)[0]


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "http://a.example/", None),
        (BOTH, "http://a.example/", ("plain", 3128)),
        (BOTH, "https://a.example/", ("secure", 3128)),
        ({"http_proxy": "lower:1", "HTTP_PROXY": "http://upper:2"}, "http://a.example/", ("lower", 1)),
        ({"HTTPS_PROXY": "http://only:1"}, "http://a.example/", None),
        ({"HTTP_PROXY": "http://p"}, "http://a.example/", ("p", 80)),
        ({"HTTP_PROXY": "  "}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "*"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "a.example"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "A.Example"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": ".example"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "*.example"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "example"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "ample"}, "http://a.example/", ("plain", 3128)),
        (BOTH | {"NO_PROXY": "other, a.example"}, "http://a.example/", None),
        (BOTH | {"NO_PROXY": "a.example:8080"}, "http://a.example/", ("plain", 3128)),
        (BOTH | {"NO_PROXY": "a.example:8080"}, "http://a.example:8080/", None),
        (BOTH | {"NO_PROXY": "10.0.0.0/8"}, "http://10.1.2.3/", None),
        (BOTH | {"NO_PROXY": "10.0.0.0/8"}, "http://11.1.2.3/", ("plain", 3128)),
        (BOTH | {"NO_PROXY": "127.0.0.1"}, "http://127.0.0.1:99/", None),
        (BOTH | {"NO_PROXY": "::1"}, "http://[::1]/", None),
        (BOTH | {"NO_PROXY": "[::1]"}, "http://[::1]/", None),
        (BOTH | {"NO_PROXY": "fd00::/8"}, "http://[fd00::1]/", None),
    ],
)
def test_the_environment_says_who_is_reached_through_a_proxy(
    environment: dict[str, str], url: str, proxy: tuple[str, int] | None
) -> None:
    found = Proxies.from_environment(environment).between(origin(url))
    assert (found and (found.host, found.port)) == proxy


@pytest.mark.parametrize(
    "url", ["socks5://user:hunter2@p:1", "https://user:hunter2@p", "http://", "http://p:99999999"]
)
def test_a_proxy_we_cannot_use_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(SettingsError, match="HTTPS_PROXY") as caught:
        Proxies.from_environment({"HTTPS_PROXY": url})
    assert "hunter2" not in str(caught.value)


def test_a_proxys_password_is_not_shown() -> None:
    proxies = Proxies.from_environment({"HTTP_PROXY": "http://me:hunter2@p:1"})
    assert "hunter2" not in repr(proxies)
    assert "bWU6aHVudGVyMg" not in repr(proxies)


def relaying(port: int, heads: list[bytes]) -> Script:
    """A proxy that tunnels everything to this port."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def script(peer: Peer) -> None:
        heads.append(await peer.request())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await peer.send(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
        pumps = (pump(peer.reader, writer), pump(reader, peer.writer))
        try:
            await asyncio.gather(*pumps, return_exceptions=True)
        finally:
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    return script


async def ask(transport: Transport, url: str) -> bytes:
    with await transport.send(Endpoint(url)) as response:
        return await response.read()


def test_https_goes_through_a_tunnel_and_is_kept_alive(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        heads: list[bytes] = []
        async with (
            serving(always(), tls=certs.server) as server,
            serving(relaying(server.port, heads)) as proxy,
        ):
            through = Proxies(https=Proxy("127.0.0.1", proxy.port, b"Proxy-Authorization: Basic eA==\r\n"))
            transport = Transport(ca_file=certs.ca_file, proxies=through)
            for _ in range(3):
                assert await ask(transport, "https://localhost/x") == b"hi"
            head = b"CONNECT localhost:443 HTTP/1.1\r\nHost: localhost:443\r\nProxy-Authorization: Basic eA==\r\n\r\n"
            assert heads == [head]
            assert len(server.peers) == 1
            await transport.aclose()

    play(scene)


def test_the_certificate_behind_a_tunnel_is_checked_too(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        async with (
            serving(always(), tls=certs.server) as server,
            serving(relaying(server.port, [])) as proxy,
        ):
            through = Proxies(https=Proxy("127.0.0.1", proxy.port))
            transport = Transport(ca_file=certs.ca_file, proxies=through)
            with pytest.raises(CertificateRefused, match=r"other\.example"):
                await ask(transport, "https://other.example/")
            await transport.aclose()

    play(scene)


def test_http_goes_to_the_proxy_with_the_whole_url(play: Play) -> None:
    async def scene() -> None:
        received: list[bytes] = []

        async def forwarding(peer: Peer) -> None:
            while True:
                received.append(await peer.request())
                await peer.send(OK)

        async with serving(forwarding) as proxy:
            through = Proxies(http=Proxy("127.0.0.1", proxy.port, b"Proxy-Authorization: Basic eA==\r\n"))
            transport = Transport(proxies=through)
            endpoint = Endpoint("http://a.example:8080/x?y=1", headers=[(b"X-Key", b"k")])
            for _ in range(2):
                with await transport.send(endpoint, b"body") as response:
                    assert await response.read() == b"hi"
            expected = (
                b"POST http://a.example:8080/x?y=1 HTTP/1.1\r\nHost: a.example:8080\r\nAccept-Encoding: identity\r\n"
                b"Proxy-Authorization: Basic eA==\r\nX-Key: k\r\nContent-Length: 4\r\n\r\nbody"
            )
            assert received == [expected] * 2
            assert len(proxy.peers) == 1
            await transport.aclose()

    play(scene)


REFUSALS = {
    "no password": (
        b"HTTP/1.1 407 Auth\r\nContent-Length: 0\r\n\r\n",
        ProxyRefused,
        FailureKind.MISCONFIGURED,
        "password",
    ),
    "forbidden": (b"HTTP/1.1 403 No\r\n\r\n", ProxyRefused, FailureKind.MISCONFIGURED, "status 403"),
    "unreachable": (b"HTTP/1.1 502 Bad\r\n\r\n", ProxyRefused, FailureKind.TRANSIENT, "status 502"),
    "no HTTP": (b"hello\r\n\r\n", BadResponse, FailureKind.TRANSIENT, "no answer to a CONNECT"),
    "bytes after the yes": (
        b"HTTP/1.1 200 OK\r\n\r\nx",
        BadResponse,
        FailureKind.TRANSIENT,
        "no answer to a CONNECT",
    ),
    "endless": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000, BadResponse, FailureKind.TRANSIENT, "endless"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_proxy_that_says_no_is_told(name: str, play: Play) -> None:
    wire, expected, kind, text = REFUSALS[name]

    async def scene() -> None:
        async with serving(answering(wire)) as proxy:
            transport = Transport(proxies=Proxies(https=Proxy("127.0.0.1", proxy.port)))
            with pytest.raises(expected, match=text) as caught:
                await ask(transport, "https://a.example/")
            assert caught.value.failure.kind is kind  # type: ignore[attr-defined]
            await transport.aclose()

    play(scene)


def test_a_proxy_that_hangs_up_is_told(play: Play) -> None:
    async def hang_up(peer: Peer) -> None:
        await peer.request()

    async def scene() -> None:
        async with serving(hang_up) as proxy:
            transport = Transport(proxies=Proxies(https=Proxy("127.0.0.1", proxy.port)))
            with pytest.raises(ConnectFailed, match="closed the connection before it answered"):
                await ask(transport, "https://a.example/")
            await transport.aclose()

    play(scene)
