"""What stands on the wire when a request leaves, and what is refused before."""

import pytest
from transport.wire_stage import OK, Peer, Play, serving

from headgate.core.failures import FailureKind
from headgate.transport import Endpoint, Transport
from headgate.transport.endpoint import split_url
from headgate.transport.errors import HeaderRefused, UrlRefused


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("http://a.example", "http://a.example", "/"),
        ("http://A.Example:80/x", "http://a.example", "/x"),
        ("https://a.example:443/x?y=1#z", "https://a.example", "/x?y=1"),
        ("https://a.example:80/", "https://a.example:80", "/"),
        ("http://a.example/ü?q=ö", "http://a.example", "/%C3%BC?q=%C3%B6"),
        ("http://a.example/a%20b%2Fc", "http://a.example", "/a%20b%2Fc"),
        ("http://a.example/model:invoke(x)!", "http://a.example", "/model:invoke(x)!"),
        ("http://bücher.example/", "http://xn--bcher-kva.example", "/"),
        ("http://[2001:DB8::1]:8080/", "http://[2001:db8::1]:8080", "/"),
        ("http://127.0.0.1:11434/api", "http://127.0.0.1:11434", "/api"),
    ],
)
def test_urls_are_spelled_for_the_wire(url: str, origin: str, target: str) -> None:
    found, found_target = split_url(url)
    assert (str(found), found_target) == (origin, target)


@pytest.mark.parametrize(
    "url", ["", "a.example", "ws://a", "http://", "http://a..b..\u2100/", "http://a_b!/"]
)
def test_what_is_no_http_url_is_refused(url: str) -> None:
    with pytest.raises(UrlRefused):
        Endpoint(url)


@pytest.mark.parametrize("method", ["", "post", "GET /x HTTP/1.1\r\n", "HEAD", "CONNECT"])
def test_odd_methods_are_refused(method: str) -> None:
    with pytest.raises(ValueError, match="no method this transport can send"):
        Endpoint("http://a.example/", method=method)


@pytest.mark.parametrize(
    "value", [b"sk-hunter2\n", b"sk-hunter2\r\nX: y", b"sk-hunter2\0", b"\x7fsk-hunter2"]
)
def test_a_key_with_a_line_break_is_refused_without_being_shown(value: bytes) -> None:
    with pytest.raises(HeaderRefused, match="the header Authorization holds a line break") as caught:
        Endpoint("http://a.example/", headers=[(b"Authorization", value)])
    assert "hunter2" not in str(caught.value)
    assert caught.value.failure.kind is FailureKind.MISCONFIGURED


@pytest.mark.parametrize("name", [b"", b"a b", b"a:", b"a\r\n", "ü".encode()])
def test_what_is_no_header_name_is_refused(name: bytes) -> None:
    with pytest.raises(HeaderRefused, match="no header name"):
        Endpoint("http://a.example/", headers=[(name, b"x")])


@pytest.mark.parametrize(
    "name", [b"Host", b"content-length", b"Transfer-Encoding", b"Connection", b"Accept-Encoding"]
)
def test_headers_the_transport_writes_itself_are_refused(name: bytes) -> None:
    with pytest.raises(HeaderRefused, match="written by the transport itself"):
        Endpoint("http://a.example/", headers=[(name, b"x")])


def test_a_request_is_one_piece_with_its_length_and_no_encoding_asked_for(play: Play) -> None:
    async def scene() -> None:
        received: list[bytes] = []

        async def script(peer: Peer) -> None:
            while True:
                received.append(await peer.request())
                await peer.send(OK)

        async with serving(script) as server:
            transport = Transport()
            endpoint = Endpoint(server.url("/v1/chat"), headers=[(b"Authorization", b"Bearer k")])
            with await transport.send(endpoint, b"{}", headers=[(b"X-Request-Id", b"7")]) as response:
                await response.read()
            with await transport.send(Endpoint(server.url("/models"), method="GET")) as response:
                await response.read()
            host = f"Host: 127.0.0.1:{server.port}\r\nAccept-Encoding: identity\r\n".encode()
            assert received == [
                b"POST /v1/chat HTTP/1.1\r\n" + host + b"Authorization: Bearer k\r\n"
                b"Content-Length: 2\r\nX-Request-Id: 7\r\n\r\n{}",
                b"GET /models HTTP/1.1\r\n" + host + b"Content-Length: 0\r\n\r\n",
            ]
            await transport.aclose()

    play(scene)


def test_a_refused_header_of_one_call_costs_no_connection(play: Play) -> None:
    async def scene() -> None:
        async with serving(Peer.gone) as server:
            transport = Transport()
            with pytest.raises(HeaderRefused):
                await transport.send(Endpoint(server.url()), headers=[(b"X", b"a\nb")])
            assert server.peers == []
            await transport.aclose()

    play(scene)


def test_neither_path_nor_headers_are_shown_of_an_endpoint() -> None:
    shown = repr(Endpoint("https://a.example/x?key=secret", headers=[(b"X-Key", b"secret")]))
    assert shown == "Endpoint(POST https://a.example)"
