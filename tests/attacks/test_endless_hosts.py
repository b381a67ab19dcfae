"""Hosts and headers that take quadratic time to parse: in redirects and types of pages, in webhooks, in bookmarks."""

import asyncio
from collections.abc import Iterator
from typing import Final

import pytest
from apps.bookmarks.stage import a_site, answer
from attacks.loop_time import MAX_CALLBACK_S, callback_times
from attacks.tenants import bearer, message_of
from server.locked_stage import BODY, locked

import headgate
from headgate.apps.bookmarks.reading import EXTRACT, read_page
from headgate.apps.untrusted import Parser
from headgate.transport import Fetcher
from headgate.transport.endpoint import MAX_URL_CHARS, split_url
from headgate.transport.errors import UrlRefused

HEADERS: Final = "Content-Type: application/json", "Idempotency-Key: x"
RULES: Final = headgate.FetchRules(allow_private=True, ports=None)


def ideographs(count: int) -> str:
    """Each of them another: punycode gets longer with each, and slower with each that it has."""
    return "".join(chr(0x4E00 + at) for at in range(count))


def accents(count: int) -> str:
    """In the order that takes longest to put in order."""
    return "a" + "\u0301" * (count // 2) + "\u0323" * (count // 2)


HOSTS: Final = {
    "ideographs": ideographs(9000) + ".example",
    "ideographs in labels": ".".join(ideographs(60) for _ in range(150)),
    "a long label": ideographs(200) + ".example",
    "accents": accents(20_000),
    "accents in a URL of the longest": accents(MAX_URL_CHARS - 100),
    "a name before the host": accents(20_000) + "@a.example",
}


@pytest.fixture
def callbacks() -> Iterator[list[float]]:
    with callback_times() as seconds:
        yield seconds


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("start", ["http://", "//"])
def test_a_redirect_to_an_endless_host_is_refused_at_once(
    callbacks: list[float], name: str, start: str
) -> None:
    async def scene() -> None:
        away = answer(b"", status=302, headers={"Location": f"{start}{HOSTS[name]}/"})
        async with a_site(away=away) as site:
            with pytest.raises(UrlRefused):
                await Fetcher(RULES).fetch(site.url("/away"))

    asyncio.run(scene())
    assert max(callbacks) < MAX_CALLBACK_S


@pytest.mark.parametrize("host", [ideographs(1980), accents(1980)])
def test_a_webhook_or_a_bookmark_with_an_endless_host_is_refused_at_once(
    callbacks: list[float], host: str
) -> None:
    async def scene() -> None:
        async with locked(work=True, apps={"bookmarks": {"model": "simulated/instant"}}) as gateway:
            key = bearer(await gateway.key())
            callbacks.clear()
            job = {"task": "chat", "input": BODY, "webhook": f"http://{host}/"}
            for path, body in (("/v1/jobs", job), ("/v1/bookmarks", {"url": f"http://{host}/"})):
                refused = await gateway.post(path, body, key, *HEADERS)
                assert refused.status == 400, refused.body
                assert "host" in message_of(refused)

    asyncio.run(scene())
    assert max(callbacks) < MAX_CALLBACK_S


def test_a_long_name_in_the_letters_of_any_language_is_still_a_host() -> None:
    label = "ü" * 40
    assert split_url(f"http://{label}.{label}.{label}.example/")[0].host.count("xn--") == 3
    assert split_url(f"http://{'a' * 63}.example\u3002jp/")[0].host == f"{'a' * 63}.example.jp"
    path = "/" + "x" * (MAX_URL_CHARS - 20)
    assert split_url("http://a.example" + path)[1] == path


@pytest.mark.parametrize(
    "kind",
    [
        'text/plain; charset="' + ";" * 60_000,
        "text/plain; " + 'a="' + ';"' * 30_000,
        "text/plain;" + ";" * 60_000,
        "text/plain" + "".join(f'; charset*{at}="x"' for at in range(3000)),
    ],
)
def test_an_endless_type_of_a_page_is_read_no_further_than_its_beginning(
    callbacks: list[float], kind: str
) -> None:
    async def fetch(url: str, rules: headgate.FetchRules) -> headgate.Fetched:
        return await Fetcher(rules).fetch(url)

    async def main() -> None:
        parser = Parser(EXTRACT)
        try:
            async with a_site(page=answer(b"Zeit und Raum", kind=kind)) as site:
                page = await read_page(site.url("/page"), fetch, RULES, parser)
                assert page.excerpt == "Zeit und Raum"
        finally:
            parser.close()

    asyncio.run(main())
    assert max(callbacks) < MAX_CALLBACK_S
