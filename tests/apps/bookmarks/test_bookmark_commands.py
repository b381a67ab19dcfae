"""`headgate bookmark` against a served gateway: offline, online, there and back again."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from apps.bookmarks.stage import a_shop, simulated
from cli.command_stage import Answer, Desk

NOBODY = "http://127.0.0.1:9"
HERE = {"bookmarks": {"model": "m", "allow_private": True}}
"""Pages of this machine may be read: the gateway's own, for example."""


@contextmanager
def gateway(*, work: bool = False, **settings: Any) -> Iterator[str]:
    """A real one, in a loop of its own: the command runs in this thread."""
    ready, done = threading.Event(), asyncio.Event()
    running: list[tuple[asyncio.AbstractEventLoop, str]] = []

    async def serve() -> None:
        async with a_shop(work=work, data_dir="served", **settings) as shop:
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
    assert desk.run("outbox", "list").out.startswith("The outbox is empty: ")


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


def test_one_bookmark_is_shown_with_all_that_is_known_of_it(desk: Desk) -> None:
    with gateway() as url:
        desk.run(
            "bookmark", "add", "https://a.example/1", "--title", "One\x1b[2J", "--tag", "x", "--url", url
        )
        (listed,) = desk.run("bookmark", "list", "--json", "--url", url).json["data"]
        shown = desk.run("bookmark", "show", listed["id"], "--url", url)
        assert shown.code == 0
        for words in (
            listed["id"],
            "https://a.example/1",
            "One[2J",
            "processing",
            "x",
            "cli",
            listed["job_id"],
        ):
            assert words in shown.out
        assert "\x1b" not in shown.out
        assert desk.run("bookmark", "show", listed["id"], "--json", "--url", url).json == listed


def test_a_failed_bookmark_is_shown_tried_again_and_deleted(desk: Desk) -> None:
    """What a person does who finds one among their bookmarks; and the operator finds it by its dead letter."""
    with gateway(work=True, models=simulated(outcome="rejected"), apps=HERE) as url:
        desk.run("bookmark", "add", f"{url}/metrics", "--url", url)
        failed = until_failed(desk, url)
        assert "The model refused this page. Retry it when that has changed." in failed.out
        bookmark_id = failed.out.split()[0]
        job_id = desk.run("bookmark", "show", bookmark_id, "--json", "--url", url).json["job_id"]
        shown = desk.run("dead", "show", job_id, "--url", url).out
        assert f'"bookmark_id":"{bookmark_id}"' in shown.replace(" ", "")
        dead = desk.run("dead", "show", job_id, "--json", "--url", url).json
        assert dead["metadata"] == {"bookmark_id": bookmark_id}
        retried = desk.run("bookmark", "retry", bookmark_id, "--url", url)
        assert (retried.code, retried.out) == (0, f"{bookmark_id} is processed again\n")
        until_failed(desk, url)
        deleted = desk.run("bookmark", "delete", bookmark_id, "--url", url)
        assert (deleted.code, deleted.out) == (0, f"{bookmark_id} is deleted\n")
        assert desk.run("bookmark", "list", "--url", url).out == "There are no bookmarks.\n"


def test_what_is_unknown_is_named_and_does_not_keep_the_others(desk: Desk) -> None:
    with gateway() as url:
        for number in (1, 2):
            desk.run("bookmark", "add", f"https://a.example/{number}", "--url", url)
        ids = [one["id"] for one in desk.run("bookmark", "list", "--json", "--url", url).json["data"]]
        for command in ("show", "retry", "delete"):
            unknown = desk.run("bookmark", command, "bm_nobody", "--url", url)
            assert unknown.code == 2
            assert "there is no bookmark 'bm_nobody'" in unknown.err
        deleted = desk.run("bookmark", "delete", ids[0], "bm_nobody", ids[1], "--url", url)
        assert (deleted.code, deleted.out) == (2, f"{ids[0]} is deleted\n{ids[1]} is deleted\n")
        assert "there is no bookmark 'bm_nobody'" in deleted.err


def test_commands_that_need_a_gateway_say_so(desk: Desk) -> None:
    for command in ("show", "retry", "delete"):
        answer = desk.run("bookmark", command, "bm_1", "--url", NOBODY)
        assert answer.code == desk.run("bookmark", "list", "--url", NOBODY).code != 0
        assert NOBODY in answer.err


def until_failed(desk: Desk, url: str) -> Answer:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        listed = desk.run("bookmark", "list", "--json", "--status", "failed", "--url", url).json["data"]
        if listed:
            return desk.run("bookmark", "show", listed[0]["id"], "--url", url)
    raise AssertionError("it does not fail")
