"""URLs given by strangers: only what was checked is connected to, hop by hop."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import pytest
from transport.certificates import Certificates
from transport.wire_stage import OK, Peer, Play, Script, always, answering, eventually, serving

from headgate.core.failures import FailureKind
from headgate.transport import Fetcher, FetchRules
from headgate.transport.connecting import tls_context
from headgate.transport.errors import (
    AddressRefused,
    BadResponse,
    CertificateRefused,
    ConnectionCut,
    PageTooLarge,
    TotalTimedOut,
    UrlRefused,
)
from headgate.transport.names import Resolve


class Names:
    """A name server that counts its questions."""

    def __init__(self, **answers: str) -> None:
        self.answers: Mapping[str, list[str]] = {name: text.split() for name, text in answers.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.answers[host]


def fetcher(port: int, resolve: Resolve | None = None, **rules: Any) -> Fetcher:
    """May ask this machine, on this port."""
    permitted = FetchRules(allow_private=True, ports=frozenset({port}), **rules)
    return Fetcher(permitted) if resolve is None else Fetcher(permitted, resolve=resolve)


def paths(**answers: bytes) -> Script:
    async def script(peer: Peer) -> None:
        request = await peer.request()
        await peer.send(answers[request.split()[1].decode().strip("/")])

    return script


def redirect(location: str, status: int = 302) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


def test_a_page_is_fetched_with_its_own_host_name(play: Play) -> None:
    async def scene() -> None:
        received: list[bytes] = []

        async def script(peer: Peer) -> None:
            received.append(await peer.request())
            await peer.send(OK)

        async with serving(script) as server:
            names = Names(site="127.0.0.1")
            page = await fetcher(server.port, names).fetch(server.url("/a?b=c#d", host="site"))
            assert (page.status, page.body, page.url) == (200, b"hi", server.url("/a?b=c#d", host="site"))
            assert received == [
                f"GET /a?b=c HTTP/1.1\r\nHost: site:{server.port}\r\nAccept-Encoding: identity\r\n"
                "Connection: close\r\nContent-Length: 0\r\n\r\n".encode()
            ]
            assert names.asked == ["site"], "resolved once: a second answer could be another one"

    play(scene)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://localhost/",
        "http://127.1/",
        "http://0x7f000001/",
        "http://2130706433/",
        "http://0177.0.0.1/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.1]/",
        "http://[64:ff9b::7f00:1]/",
        "http://0/",
        "http://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
    ],
)
def test_this_machine_and_its_neighbours_are_not_asked_in_any_spelling(url: str, play: Play) -> None:
    async def scene() -> None:
        with pytest.raises(AddressRefused, match="not allowed") as caught:
            await Fetcher().fetch(url)
        assert caught.value.failure.kind is FailureKind.REJECTED

    play(scene)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("ftp://a.example/", "http:// or https://"),
        ("file:///etc/passwd", "http:// or https://"),
        ("//a.example/", "http:// or https://"),
        ("http://user:pass@a.example/", "user name"),
        ("http://@a.example/", "user name"),
        ("http://a.example:8080/", "uses port 8080; only 80, 443"),
        ("http://a.example:0/", "port 0"),
        ("http://a.example:99999/", "cannot be read"),
        ("http://a.example\\@b.example/", "backslash"),
        ("http://a.example/\r\nX: y", "control character"),
        ("http://a b/", "space"),
        ("http:///x", "no host"),
        ("http://[::1%25eth0]/", "zone"),
        ("http://[::1/", "cannot be read"),
        ("http://127.0.0.%31/", "no host name"),
        ("http://a..example/", "no host name"),
        ("http://" + "a" * 64 + ".example/", "no host name"),
    ],
)
def test_odd_urls_are_refused_before_anything_is_asked(url: str, text: str, play: Play) -> None:
    async def scene() -> None:
        names = Names()
        with pytest.raises(UrlRefused, match=text):
            await Fetcher(resolve=names).fetch(url)
        assert names.asked == []

    play(scene)


@pytest.mark.parametrize(
    "addresses", ["8.8.8.8 10.0.0.1", "10.0.0.1 8.8.8.8", "8.8.8.8 ::1", "8.8.8.8 64:ff9b::7f00:1"]
)
def test_one_bad_address_spoils_the_name(addresses: str, play: Play) -> None:
    async def scene() -> None:
        with pytest.raises(AddressRefused):
            await Fetcher(resolve=Names(mixed=addresses)).fetch("http://mixed/")

    play(scene)


def test_the_checked_address_is_the_one_connected_to(play: Play) -> None:
    """A name that changes its mind between check and connect (DNS rebinding) gains nothing."""

    async def scene() -> None:
        async with serving(always()) as server:
            asked = 0

            async def rebinding(host: str, port: int) -> list[str]:
                nonlocal asked
                asked += 1
                return ["127.0.0.1"] if asked == 1 else ["169.254.169.254"]

            assert (await fetcher(server.port, rebinding).fetch(server.url(host="rebind"))).body == b"hi"
            assert asked == 1

    play(scene)


def test_redirects_are_followed_and_the_last_url_is_told(play: Play) -> None:
    async def scene() -> None:
        script = paths(a=redirect("/b", 301), b=redirect("c", 307), c=redirect("?x=1", 308), **{"c?x=1": OK})
        async with serving(script) as server:
            page = await fetcher(server.port).fetch(server.url("/a"))
            assert (page.body, page.url) == (b"hi", server.url("/c?x=1"))
            assert len(server.peers) == 4

    play(scene)


def test_a_location_in_raw_utf8_is_understood(play: Play) -> None:
    async def scene() -> None:
        async with serving(paths(a=redirect("/grün"), **{"gr%C3%BCn": OK})) as server:
            assert (await fetcher(server.port).fetch(server.url("/a"))).body == b"hi"

    play(scene)


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("http://169.254.169.254/latest/", AddressRefused),
        ("http://inner/", AddressRefused),
        ("file:///etc/passwd", UrlRefused),
        ("http://user:pw@a.example/", UrlRefused),
        ("gopher://a.example/", UrlRefused),
    ],
)
def test_every_hop_is_checked_like_the_first(location: str, expected: type[Exception], play: Play) -> None:
    async def scene() -> None:
        async with serving(always(redirect(location))) as server:
            names = Names(outer="127.0.0.1", inner="169.254.0.1", **{"169.254.169.254": "169.254.169.254"})
            rules = FetchRules(allow_private=True, ports=frozenset({80, server.port}))
            with pytest.raises(expected):
                await Fetcher(rules, resolve=names).fetch(server.url(host="outer"))

    play(scene)


def test_a_redirect_in_circles_ends(play: Play) -> None:
    async def scene() -> None:
        async with serving(always(redirect("/"))) as server:
            with pytest.raises(UrlRefused, match="redirects more than 5 times"):
                await fetcher(server.port).fetch(server.url())
            assert len(server.peers) == 6

    play(scene)


def test_without_redirects_a_3xx_is_the_answer(play: Play) -> None:
    async def scene() -> None:
        async with serving(always(redirect("http://169.254.169.254/"))) as server:
            page = await fetcher(server.port, max_redirects=0).fetch(server.url())
            assert (page.status, page.headers["location"]) == (302, "http://169.254.169.254/")
            page = await fetcher(server.port).fetch(server.url(), method="POST", body=b"x")
            assert page.status == 302

    play(scene)


def test_headers_do_not_follow_a_redirect_to_another_origin(play: Play) -> None:
    async def scene() -> None:
        received: list[bytes] = []

        async def there(peer: Peer) -> None:
            received.append(await peer.request())
            await peer.send(OK)

        async with (
            serving(there) as other,
            serving(paths(a=redirect("/b"), b=redirect(other.url()))) as server,
        ):
            rules = FetchRules(allow_private=True, ports=frozenset({server.port, other.port}))
            page = await Fetcher(rules).fetch(server.url("/a"), headers=[(b"Authorization", b"secret")])
            assert page.body == b"hi"
            assert b"secret" not in received[0]

    play(scene)


def test_bytes_are_bounded(play: Play) -> None:
    async def scene() -> None:
        async with serving(
            always(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b"x" * 2000)
        ) as server:
            with pytest.raises(PageTooLarge):
                await fetcher(server.port, max_bytes=1999).fetch(server.url())
            assert len((await fetcher(server.port, max_bytes=2000).fetch(server.url())).body) == 2000

    play(scene)


def test_time_is_bounded_over_all_hops(play: Play) -> None:
    async def slow_redirect(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.15)
        await peer.send(redirect("/"))

    async def scene() -> None:
        async with serving(slow_redirect) as server:
            start = time.monotonic()
            with pytest.raises(TotalTimedOut):
                await fetcher(server.port, total_s=0.4).fetch(server.url())
            assert 0.35 < time.monotonic() - start < 1.4

    play(scene)


def test_an_encoded_page_is_refused(play: Play) -> None:
    async def scene() -> None:
        wire = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi"
        async with serving(answering(wire)) as server:
            with pytest.raises(BadResponse, match="encoded its answer although asked not to"):
                await fetcher(server.port).fetch(server.url())

    play(scene)


def test_tls_checks_the_name_in_the_url_not_the_address(certs: Certificates, play: Play) -> None:
    async def scene() -> None:
        async with serving(always(), tls=certs.server) as server:
            rules = FetchRules(allow_private=True, ports=frozenset({server.port}))
            names = Names(localhost="127.0.0.1", other="127.0.0.1")
            trusting = Fetcher(rules, resolve=names, tls=tls_context(certs.ca_file))
            assert (await trusting.fetch(server.url(host="localhost"))).body == b"hi"
            with pytest.raises(CertificateRefused):
                await trusting.fetch(server.url(host="other"))

    play(scene)


def test_no_proxy_of_the_environment_is_used(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would do the looking-up, and the check would be for nothing."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def scene() -> None:
        async with serving(always()) as server:
            assert (await fetcher(server.port).fetch(server.url())).body == b"hi"

    play(scene)


def test_nothing_stays_open(play: Play) -> None:
    async def scene() -> None:
        async with serving(always()) as server:
            for _ in range(3):
                await fetcher(server.port).fetch(server.url())
            assert len(server.peers) == 3
            await eventually(lambda: all(peer.ended for peer in server.peers), 1)

    play(scene)


def test_a_page_cut_short_is_an_error(play: Play) -> None:
    async def cut(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhi")

    async def scene() -> None:
        async with serving(cut) as server:
            with pytest.raises(ConnectionCut):
                await fetcher(server.port).fetch(server.url())

    play(scene)


# ---- Messages to strangers' addresses ------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 204, 302, 307, 410, 500])
def test_a_message_is_sent_once_and_only_the_head_of_its_answer_counts(status: int, play: Play) -> None:
    """A receiver may send a page of any size, cut it short or never end it: the status says it all."""
    received: list[bytes] = []

    async def endless(peer: Peer) -> None:
        received.append(await peer.request())
        await peer.send(
            f"HTTP/1.1 {status} So\r\nLocation: http://169.254.169.254/\r\n".encode()
            + (b"\r\n" if status == 204 else b"Content-Length: 9999999\r\n\r\nbegun")
        )
        await peer.gone()

    async def scene() -> None:
        async with serving(endless) as server:
            posted = await fetcher(server.port).post(server.url("/hook"), b"{}", [(b"webhook-id", b"msg_1")])
            assert (posted.status, posted.headers["location"]) == (status, "http://169.254.169.254/")
            assert received == [
                f"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nAccept-Encoding: identity\r\n"
                "Connection: close\r\nwebhook-id: msg_1\r\nContent-Length: 2\r\n\r\n{}".encode()
            ]
            await eventually(lambda: all(peer.ended for peer in server.peers), 1)

    play(scene)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://2130706433/", "https://10.0.0.1/x", "http://[::ffff:7f00:1]:8080/"]
)
def test_a_message_is_not_sent_to_this_machine_and_its_neighbours(url: str, play: Play) -> None:
    async def scene() -> None:
        with pytest.raises(AddressRefused):
            await Fetcher(FetchRules(ports=None)).post(url, b"{}")

    play(scene)


def test_a_message_goes_to_the_address_that_was_checked(play: Play) -> None:
    """A name that leads elsewhere at a second look (DNS rebinding) is not looked up a second time."""

    async def scene() -> None:
        async with serving(always()) as server:
            names = Names(hook="127.0.0.1")
            assert (await fetcher(server.port, names).post(server.url(host="hook"), b"{}")).status == 200
            assert names.asked == ["hook"]

    play(scene)


def test_a_receiver_that_says_nothing_costs_no_more_than_the_time_allowed(play: Play) -> None:
    async def silent(peer: Peer) -> None:
        await peer.request()
        await peer.gone()

    async def scene() -> None:
        async with serving(silent) as server:
            start = time.monotonic()
            with pytest.raises(TotalTimedOut):
                await fetcher(server.port, total_s=0.3).post(server.url(), b"{}")
            assert 0.25 < time.monotonic() - start < 1.3

    play(scene)
