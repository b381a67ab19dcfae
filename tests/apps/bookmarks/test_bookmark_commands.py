"""`headgate bookmark` against a served gateway: offline, online, there and back again."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from apps.bookmarks.stage import a_shop
from cli.command_stage import Desk

NOBODY = "http://127.0.0.1:9"


@contextmanager
def gateway() -> Iterator[str]:
    """A real one, in a loop of its own: the command runs in this thread."""
    ready, done = threading.Event(), asyncio.Event()
    running: list[tuple[asyncio.AbstractEventLoop, str]] = []

    async def serve() -> None:
        async with a_shop(work=False, data_dir="served") as shop:
            running.append((asyncio.get_running_loop(), shop.served.url))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait(30)
    try:
        yield running[0][1]
    finally:
        running[0][0].call_soon_threadsafe(done.set)
        thread.join()


def test_what_is_added_offline_is_saved_once_there_is_a_gateway(desk: Desk) -> None:
    offline = desk.run("bookmark", "add", "https://a.example/1", "--tag", "x", "--url", NOBODY)
    assert offline.code == 4
    assert "Nothing is lost" in offline.err
    with gateway() as url:
        online = desk.run("bookmark", "add", "https://a.example/2", "--title", "Two", "--url", url)
        assert (online.code, online.out) == (0, "2 sent, 0 failed, 0 waiting\n")
        listed = desk.run("bookmark", "list", "--json", "--url", url).json["data"]
        assert [(one["url"], one["title"], one["tags"]) for one in listed] == [
            ("https://a.example/2", "Two", []),
            ("https://a.example/1", None, ["x"]),
        ]
        assert {one["created_from"] for one in listed} == {"cli"}
        table = desk.run("bookmark", "list", "--search", "two", "--url", url).out
        assert "Two" in table
        assert "a.example/1" not in table
        assert desk.run("bookmark", "list", "--status", "done", "--url", url).out == "No bookmarks match.\n"


def test_what_is_no_address_is_refused_before_it_is_written_down(desk: Desk) -> None:
    refused = desk.run("bookmark", "add", "ftp://a.example/", "--url", NOBODY)
    assert refused.code == 2
    assert "must begin with http" in refused.err
    assert desk.run("outbox", "list").out == "The outbox is empty.\n"


@pytest.mark.parametrize("form", ["html", "json"])
def test_what_is_exported_can_be_imported(desk: Desk, form: str) -> None:
    file = desk.folder / f"bookmarks.{form}"
    (desk.folder / "in.json").write_text(
        json.dumps([{"url": "https://a.example/A", "title": "<A>", "tags": ["t"]}, {"url": "ftp://a/"}])
    )
    with gateway() as url:
        imported = desk.run("bookmark", "import", "in.json", "--url", url)
        assert (imported.code, imported.out) == (0, "1 sent, 0 failed, 0 waiting\n")
        assert "1 link left out" in imported.err
        assert desk.run("bookmark", "export", "--format", form, "--output", str(file), "--url", url).code == 0
        again = desk.run("bookmark", "import", str(file), "--url", url)
        assert again.code == 0
        assert len(desk.run("bookmark", "list", "--json", "--url", url).json["data"]) == 1
    assert "https://a.example/A" in file.read_text()


def test_a_file_that_is_not_there_is_told(desk: Desk) -> None:
    missing = desk.run("bookmark", "import", "nowhere.html", "--url", NOBODY)
    assert missing.code == 2
    assert "nowhere.html cannot be read" in missing.err


def test_an_enormous_file_is_written_down_in_one_go_or_refused(desk: Desk) -> None:
    """One transaction for all: an fsync for each took 43 s for 20,000."""
    links = [f'<DT><A HREF="https://a.example/{number}">{number}</A>' for number in range(5000)]
    (desk.folder / "many.html").write_text("\n".join(links))
    imported = desk.run("bookmark", "import", "many.html", "--url", NOBODY)
    assert (imported.code, imported.out) == (4, "0 sent, 0 failed, 5000 waiting\n")
    with (desk.folder / "huge.html").open("wb") as file:
        file.truncate(100 * 2**20 + 1)
    refused = desk.run("bookmark", "import", "huge.html", "--url", NOBODY)
    assert refused.code == 2
    assert "import it in parts" in refused.err
