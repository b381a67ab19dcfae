"""`headgate outbox`: written down without a gateway, sent with one, told honestly in between."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cli.command_stage import Desk
from client.stub import Fault, Stub, listening

NOBODY = "http://127.0.0.1:9"


@contextmanager
def gateway(stub: Stub) -> Iterator[str]:
    """The stub in a loop of its own: the command runs in this thread."""
    ready, done = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with listening(stub):
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield stub.url
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join()


def test_what_is_added_offline_is_sent_later_once(desk: Desk) -> None:
    assert desk.run("outbox", "add", "chat", '{"a": 1}', "--stream", "s").out == "1\n"
    assert desk.run("outbox", "add", "chat", "-", stdin='"from stdin"').out == "2\n"
    (desk.folder / "input.json").write_text('"from a file"')
    assert desk.run("outbox", "add", "chat", "@input.json", "--options", '{"priority": 1}').out == "3\n"
    offline = desk.run("outbox", "flush", "--url", NOBODY)
    assert (offline.code, offline.out) == (4, "0 sent, 0 failed, 3 waiting\n")
    assert "Nothing is lost" in offline.err
    stub = Stub()
    with gateway(stub) as url:
        assert desk.run("outbox", "flush", "--url", url).out == "3 sent, 0 failed, 0 waiting\n"
        assert desk.run("outbox", "flush", "--url", url).code == 0
    assert sorted(map(json.dumps, stub.inputs)) == ['"from a file"', '"from stdin"', '{"a": 1}']
    assert (desk.folder / "data" / "outbox.db").exists()


def test_what_failed_is_listed_with_its_reason_and_can_be_sent_again_or_let_go(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_OUTBOX", str(desk.folder / "mine.db"))
    for name in ("first", "second"):
        desk.run("outbox", "add", "chat", json.dumps(name), "--stream", name)
    stub = Stub(otherwise=lambda _: Fault.WRONG)
    with gateway(stub) as url:
        monkeypatch.setenv("HEADGATE_URL", url)
        flushed = desk.run("outbox", "flush", "--json")
        assert (flushed.code, flushed.json["failed"]) == (1, 2)
        table = desk.run("outbox", "list", "--state", "failed").out
        assert "told invalid_request" in table
        assert desk.run("outbox", "discard", "2").code == 0
        assert desk.run("outbox", "retry", "1").code == 0
        stub.otherwise = lambda _: Fault.NONE
        assert desk.run("outbox", "flush").code == 0
    (entry,) = desk.run("outbox", "list", "--json").json["data"]
    assert (entry["state"], entry["server_id"], entry["body"]["input"]) == ("sent", "job-0", "first")


def test_a_misspelled_name_of_the_outbox_is_told_wherever_it_stands(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new, empty outbox under the wrong name would look as if nothing waited."""
    wrong = desk.folder / "mien.db"
    assert "there is no outbox" in desk.run("outbox", "list", "--file", str(wrong)).err
    monkeypatch.setenv("HEADGATE_OUTBOX", str(wrong))
    told = desk.run("outbox", "flush", "--url", NOBODY)
    assert (told.code, "there is no outbox" in told.err, wrong.exists()) == (2, True, False)


def test_a_folder_that_cannot_be_made_is_told_with_what_to_do(desk: Desk) -> None:
    told = desk.run("outbox", "add", "chat", "1", "--file", "/dev/null/outbox.db")
    assert (told.code, "check the path and its permissions" in told.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        ("add", "chat", "{broken"),
        ("add", "chat", "@nowhere.json"),
        ("add", "chat", "1", "--options", "[]"),
        ("retry", "7"),
        ("discard", "7"),
        ("flush", "--url", "ftp://nowhere"),
        ("list", "--file", "headgate.yaml"),
    ],
)
def test_mistakes_end_with_code_2_and_a_word(desk: Desk, words: tuple[str, ...]) -> None:
    answer = desk.run("outbox", *words)
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("headgate: ")


def test_an_empty_outbox_says_so(desk: Desk) -> None:
    number = desk.run("outbox", "add", "chat", "1").id
    desk.run("outbox", "discard", number)
    assert desk.run("outbox", "list").out == "The outbox is empty.\n"
    assert desk.run("outbox", "list", "--stream", "x").out == "No entries match.\n"
    assert desk.run("outbox", "flush", "--url", NOBODY).code == 0
