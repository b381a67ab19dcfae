"""150 addresses that lead where nobody from outside may look: each is one bookmark or a 400, and nobody is connected to.

What is connected to is seen by the interpreter itself (its audit events), so no spelling can slip past the test.
"""

import asyncio
import ipaddress
import itertools
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from apps.bookmarks.stage import Shop, a_shop, a_site, answer, until
from conftest import Figure

from headgate.transport.guard import why_refused

DENIED: Final = [
    "127.0.0.1",
    "127.1",
    "127.2",
    "127.0.1",
    "127.0.0.2",
    "127.255.255.254",
    "0x7f000001",
    "0x7f.1",
    "0x7f.0x1",
    "0x7f.0.0.1",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0177.0.0.01",
    "0",
    "0.0.0.0",
    "0x0",
    "00",
    "0.1",
    "10.0.0.1",
    "10.1",
    "10.255.255.255",
    "0xa.1",
    "012.0.0.1",
    "167772161",
    "0x0a000001",
    "172.16.0.1",
    "172.16.1",
    "172.31.255.255",
    "0xac100001",
    "2886729729",
    "192.168.0.1",
    "192.168.1",
    "192.168.1.254",
    "0xc0a80001",
    "3232235521",
    "0300.0250.0.1",
    "169.254.169.254",
    "169.254.0.1",
    "0xa9fea9fe",
    "2852039166",
    "0251.0376.0251.0376",
    "100.64.0.1",
    "100.127.255.254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "192.88.99.1",
    "localhost",
    "localhost.",
    "LOCALHOST",
    "LocalHost",
    "sub.localhost",
    "１２７.０.０.１",
    "①②⑦.0.0.1",
    "127。0。0。1",
    "127．0．0．1",
    "₁₂₇.0.0.1",
    "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
    "ⓛocalhost",
    "ｌｏｃａｌｈｏｓｔ",
    "[::1]",
    "[0:0:0:0:0:0:0:1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[::FFFF:10.0.0.1]",
    "[::ffff:a9fe:a9fe]",
    "[::127.0.0.1]",
    "[::ffff:0:127.0.0.1]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[64:ff9b:1::1]",
    "[2002:7f00:1::]",
    "[2002:a00:1::]",
    "[2001::1]",
    "[2001:0:7f00:1::]",
    "[fe80::1]",
    "[fec0::1]",
    "[fc00::1]",
    "[fd00::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[ff02::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[100::1]",
    "[::ffff:192.168.1.1]",
    "[2001:10::1]",
    "[2620:4f:8000::1]",
    "[4000::1]",
    "[2606:4700::5efe:7f00:1]",
    "[2606:4700::200:5efe:a00:1]",
]
PORTS: Final = (
    "127.0.0.1:22",
    "127.0.0.1:8400",
    "10.0.0.1:80",
    "[::1]:443",
    "localhost:5432",
    "192.168.0.1:443",
)
SPELLED: Final = (
    "http://127.0.0.1@example.invalid/",
    "http://example.invalid@127.0.0.1/",
    "http://127.0.0.1#@example.invalid/",
    "http://127.0.0.1?@example.invalid/",
    "http://example.invalid\\@127.0.0.1/",
    "http://127.0.0.1%00.example.invalid/",
    "http://127.0.0.%31/",
    "http://%31%32%37.0.0.1/",
    "http:127.0.0.1/",
    "http:/127.0.0.1/",
    "http:///127.0.0.1/",
    "//127.0.0.1/",
    "HtTp://127.0.0.1/",
    "hTTps://LOCALHOST/",
    " http://127.0.0.1/ ",
    "http://127.0.0.1\t/",
    "ht\ntp://127.0.0.1/",
    "http://127.0.0.1\r\nHost: a/",
    "http://[::1%25lo]/",
    "http://[::1]extra/",
    "http://[127.0.0.1]/",
    "http://[::1",
    "http://127.0.0.1:80:80/",
    "http://127.0.0.1:-1/",
    "http://127.0.0.1:０/",
    "http://256.256.256.256/",
    "http://127.0.0.1.nip.invalid/",
    "gopher://127.0.0.1/_x",
    "file:///etc/passwd",
    "file://127.0.0.1/etc/passwd",
    "ftp://127.0.0.1/",
    "dict://127.0.0.1:11211/",
    "data:text/html,<script>alert(1)</script>",
    "javascript:alert(1)//http://a",
    "http://",
    "https://.",
    "https://..",
    "https://a..b/",
    "https://xn--/",
    "https://xn--a-ecp.ru\u202e/",
    "https://\u0430\u0440\u0440le.invalid\u0000/",
)
REBINDING: Final = ("rebinding", "mixed", "inward")
PUBLIC: Final = "93.184.216.34"
REDIRECTS: Final = (
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/",
    "http://0.0.0.0/",
    "http://[::ffff:10.0.0.1]/",
    "http://[fd00:ec2::254]/",
    "//100.100.100.200/",
    "http://224.0.0.1/",
    "file:///etc/passwd",
    "http://user@127.0.0.1/",
)


class Doorman:
    """Hears of every connection that this process tries to make while it is listening."""

    def __init__(self) -> None:
        self.listening = False
        self.seen: list[tuple[str, int]] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.listening and event == "socket.connect" and isinstance(arguments[1], tuple):
            self.seen.append(arguments[1][:2])


DOORMAN: Final = Doorman()


class Names:
    """The name server: hostile names with their answers in turn. Everything else is an address, or unknown."""

    def __init__(self) -> None:
        self._real = socket.getaddrinfo
        self._answers: dict[str, Iterator[list[str]]] = {
            # An honest answer comes second: whoever asks twice checks the one and connects to the other.
            "rebinding.example": itertools.cycle([["127.0.0.1"], [PUBLIC]]),
            "mixed.example": itertools.repeat([PUBLIC, "10.0.0.1"]),
            "inward.example": itertools.repeat(["192.168.1.1"]),
        }

    def __call__(
        self,
        host: Any,
        port: Any,
        family: int = 0,
        kind: int = 0,
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        if host in self._answers:
            found = next(self._answers[host])
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]
        if "localhost" in str(host):
            host = "127.0.0.1"
        return self._real(host, port, family, kind, proto, flags | socket.AI_NUMERICHOST)


def addresses() -> list[str]:
    hosts = [f"http://{host}/" for host in DENIED] + [f"https://{host}/" for host in PORTS]
    return [*hosts, *SPELLED, *(f"http://{name}.example/" for name in REBINDING)]


async def tried(shop: Shop, bookmark_id: str) -> dict[str, Any]:
    """The bookmark once its job has something to say about it."""

    async def look() -> dict[str, Any] | None:
        found = await shop.get(bookmark_id)
        return found if found["error_message"] else None

    return await until(look)


async def twice(shop: Shop, url: str) -> tuple[int, int]:
    """Save it twice, see its job fail, and make room for the next spelling of the same."""
    first, second = await shop.save(url), await shop.save(url)
    if first.status_code == 201:
        assert first.json()["id"] == second.json()["id"], url
        assert len((await shop.list())["data"]) == 1, url
        found = await tried(shop, first.json()["id"])
        # A name that nobody knows may be known tomorrow; everything else is over at once.
        job = await shop.gateway.jobs.get(found["job_id"])
        assert str(job.error).startswith(("rejected", "transient: the name")), (url, job.error)
        assert found["error_message"].startswith("The page could not be read"), (url, found)
        assert (await shop.http.delete(f"/v1/bookmarks/{found['id']}")).status_code == 200
    return first.status_code, second.status_code


@contextmanager
def watched() -> Iterator[list[tuple[str, int]]]:
    """All places that were connected to inside."""
    DOORMAN.seen.clear()
    DOORMAN.listening = True
    try:
        yield DOORMAN.seen
    finally:
        DOORMAN.listening = False


def test_hostile_addresses_are_saved_once_or_refused_and_never_asked(
    monkeypatch: pytest.MonkeyPatch, figure: Figure
) -> None:
    outcomes: list[tuple[int, int]] = []

    async def scene() -> None:
        async with a_shop(apps={"bookmarks": {"model": "m"}}) as shop:
            monkeypatch.setattr(socket, "getaddrinfo", Names())
            with watched() as reached:
                outcomes.extend([await twice(shop, url) for url in addresses()])
            own = ("127.0.0.1", shop.served.port)
            assert own in reached, "or the doorman is deaf"
            assert [place for place in reached if place != own] == []
            assert shop.provider.calls == 0, "none of them gave a text to describe"

    asyncio.run(scene())
    assert set(outcomes) == {(201, 200), (400, 400)}
    saved = sum(first == 201 for first, _ in outcomes)
    told = (
        f"{len(outcomes)}: {saved} saved once each, {len(outcomes) - saved} refused with 400, 0 connections"
    )
    figure("hostile bookmark addresses", told)


@pytest.mark.parametrize("location", REDIRECTS)
def test_a_redirect_to_a_denied_address_is_not_followed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `allow_private` the first hop may be this machine; these stay forbidden even then."""

    async def scene() -> None:
        moved = answer(b"", status=302, headers={"Location": location})
        async with a_site(moved=moved) as site, a_shop() as shop:
            monkeypatch.setattr(socket, "getaddrinfo", Names())
            with watched() as reached:
                response = await shop.save(site.url("/moved"))
                found = await tried(shop, response.json()["id"])
            assert (found["status"], site.asked, shop.provider.calls) == ("failed", ["/moved"], 0)
            assert set(reached) == {("127.0.0.1", shop.served.port), ("127.0.0.1", site.port)}

    asyncio.run(scene())


def test_the_list_is_long_enough_and_every_plain_address_in_it_is_denied() -> None:
    """A list that shrank or held a public address would prove nothing."""
    assert len(set(addresses())) >= 150
    plain = [host for host in DENIED if host.isascii() and host[0].isdigit() and host.count(".") == 3]
    for host in plain:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            continue
        assert why_refused(host) is not None, host
