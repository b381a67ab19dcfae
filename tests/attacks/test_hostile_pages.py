"""Pages that take a parser hours, against the event loop, the threads and the other tenants of a gateway."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from apps.bookmarks.stage import AT_WORK, a_site, answer, simulated, until
from observe.receivers_stage import Receiver
from server.locked_stage import Locked, locked
from transport.wire_stage import eventually

from headgate.apps.untrusted import Parser, ParserDied, Unreadable
from headgate.apps.untrusted.charsets import CODECS, decode
from headgate.apps.untrusted.child import MEMORY_BYTES, ORPHAN_S
from headgate.apps.untrusted.parser import WALL_S

PATIENCE_S = 60.0
CALLBACK_S = 0.1
"""The longest that one callback may keep the event loop's thread at work."""
GOOD = answer(b"<html><body><article><p>%b</p></article></body></html>" % (b"Water. " * 99), kind="text/html")
HOSTILE = {
    **{f"breaks{n}": answer(b"<html><body>" + b"a<br>" * 200_000, kind="text/html") for n in range(4)},
    "punycode": answer(b"-" + b"a8z" * 170_000, kind="text/plain; charset=punycode"),
    "idna": answer(b"<p>" + b"a" * 500_000, kind="text/html; charset=idna"),
    "deep": answer(b"<div>" * 300_000, kind="text/html"),
    "entities": answer(b"<html><body><p>" + b"&amp;" * 400_000, kind="text/html"),
}


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The processor's time of each callback of asyncio's loop, whatever else the machine does meanwhile."""
    taken: list[float] = []
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        taken.append(time.thread_time() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    return taken


def settings(database: str) -> dict[str, Any]:
    return {
        "database": database,
        "models": {**simulated(), "simulated/*": {"upstreams": [{"provider": "simulated"}]}},
        "apps": {"bookmarks": {"model": "m", "allow_private": True}},
        "webhooks": {"allow_private": True},
        "work": True,
    }


async def save(gate: Locked, key: str, url: str) -> str:
    headers = f"Authorization: Bearer {key}", f"Idempotency-Key: {url}", "Content-Type: application/json"
    saved = await gate.post("/v1/bookmarks", {"url": url}, *headers)
    assert saved.status == 201, saved.body
    return str(json.loads(saved.body)["id"])


async def settled(gate: Locked, key: str, bookmark_id: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = json.loads(
                (await gate.get(f"/v1/bookmarks/{bookmark_id}", f"Authorization: Bearer {key}")).body
            )
            if found["status"] not in AT_WORK:
                return dict(found)
            await asyncio.sleep(0.02)


async def upload(gate: Locked, key: str) -> None:
    parts = [("purpose", "", b"batch"), ("file", '; filename="a.jsonl"', b"{}\n")]
    body = b"".join(
        b'--x\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
        % (name.encode(), more.encode(), data)
        for name, more, data in parts
    )
    kind = "Content-Type: multipart/form-data; boundary=x"
    kept = await gate.post("/v1/files", body + b"--x--\r\n", f"Authorization: Bearer {key}", kind)
    assert (kept.status, json.loads(kept.body)["bytes"]) == (200, 3), kept.body


def test_hostile_pages_of_one_tenant_keep_nobody_else_waiting(database: str, callbacks: list[float]) -> None:
    async def scene() -> None:
        receiver = Receiver(asyncio.get_running_loop().time)
        await receiver.up()
        async with a_site(**HOSTILE, good=GOOD, first=GOOD) as site, locked(**settings(database)) as gate:
            attacker, other = await gate.key(tenant="a"), await gate.key(tenant="b")
            await settled(gate, other, await save(gate, other, site.url("/first")))
            await upload(gate, other)
            callbacks.clear()
            hostile = [await save(gate, attacker, site.url(f"/{name}")) for name in HOSTILE]
            await eventually(lambda: len(site.asked) >= 1 + len(HOSTILE), PATIENCE_S)
            await upload(gate, other)
            chat = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}
            body = {"task": "chat", "input": chat, "webhook": receiver.url()}
            told = await gate.post("/v1/jobs", body, f"Authorization: Bearer {other}")
            assert told.status == 202, told.body
            found = await settled(gate, other, await save(gate, other, site.url("/good")))
            assert found["status"] == "done", found
            await eventually(lambda: len(receiver.received) == 1, PATIENCE_S)
            ended = [await settled(gate, attacker, bookmark_id) for bookmark_id in hostile]
            assert {one["status"] for one in ended} <= {"done", "failed"}
            assert max(callbacks) < CALLBACK_S
        receiver.close()

    asyncio.run(scene())


def test_a_parsing_process_is_bounded_and_its_death_is_survived(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with a_site(one=GOOD, two=GOOD) as site, locked(**settings(database)) as gate:
            key = await gate.key(tenant="a")
            assert (await settled(gate, key, await save(gate, key, site.url("/one"))))["status"] == "done"
            [pid] = parsing_processes(os.getpid())
            assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == MEMORY_BYTES
            assert "PASSWORD" not in environment(pid)
            os.kill(pid, signal.SIGKILL)
            bookmark_id = await save(gate, key, site.url("/two"))

            async def tried() -> str | None:
                found = await gate.get(f"/v1/bookmarks/{bookmark_id}", f"Authorization: Bearer {key}")
                told: str | None = json.loads(found.body)["error_message"]
                return told

            assert await until(tried) == (
                "The page could not be read: extracting its text was interrupted. It is tried again by itself."
            )
            again = f"/v1/bookmarks/{bookmark_id}/reprocess"
            assert (await gate.post(again, None, f"Authorization: Bearer {key}")).status == 202
            assert (await settled(gate, key, bookmark_id))["status"] == "done"
        assert parsing_processes(os.getpid()) == [], "none outlives its gateway"

    monkeypatch.setenv("SOME_PASSWORD", "1")
    asyncio.run(scene())


def test_what_a_parser_does_is_an_ordinary_failure_and_others_go_on() -> None:
    async def scene() -> None:
        parser = Parser("attacks.greedy:parse")
        try:
            asleep = asyncio.create_task(parser.call("sleeper", str, what="sleep"))
            with pytest.raises(Unreadable, match="takes too much memory"):
                await parser.call("a", str, what="memory")
            with pytest.raises(Unreadable, match="takes more than 10 s"):
                await parser.call("a", str, what="spin")
            with pytest.raises(ParserDied, match="exit code -11"):
                await parser.call("a", str, what="crash")
            with pytest.raises(ParserDied):
                await parser.call("a", str, what="large")
            assert await parser.call("a", str, what="print") == "fine"
            assert len(parsing_processes(os.getpid())) == 2
            asleep.cancel()
            await asyncio.gather(asleep, return_exceptions=True)
            assert (
                await asyncio.gather(*(parser.call(f"{n}", str, what="") for n in range(9))) == ["fine"] * 9
            )
            await eventually(lambda: len(parsing_processes(os.getpid())) <= 2, PATIENCE_S)
        finally:
            parser.close()

    asyncio.run(scene())


def test_a_call_ends_by_itself_when_nobody_is_left_to_kill_it() -> None:
    """A page may make its parser hang without using the processor."""

    async def scene() -> None:
        parser = Parser("attacks.greedy:parse")
        try:
            assert 0 < float(await parser.call("a", str, what="alarm")) <= ORPHAN_S
            assert WALL_S < ORPHAN_S, "the parent kills first and says why"
        finally:
            parser.close()

    asyncio.run(scene())


def test_one_owner_has_one_call_at_a_time() -> None:
    async def scene() -> None:
        parser = Parser("attacks.greedy:parse")
        asleep = [asyncio.create_task(parser.call("a", str, what="sleep")) for _ in range(8)]
        try:
            await eventually(lambda: len(parsing_processes(os.getpid())) == 1, PATIENCE_S)
            assert await parser.call("b", str, what="") == "fine"
        finally:
            for task in asleep:
                task.cancel()
            await asyncio.gather(*asleep, return_exceptions=True)
            parser.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    "label", ["punycode", "idna", "uu", "zlib", "bz2", "rot13", "unicode_escape", "utf-7"]
)
def test_what_is_no_encoding_of_pages_is_never_used(label: str) -> None:
    assert label not in CODECS
    assert decode(b"Z\xc3\xbcrich -a\\u0041", label) == "Zürich -a\\u0041"
    assert "Zürich" in decode(b'<meta charset="%b">Z\xc3\xbcrich' % label.encode(), markup=True)


@pytest.mark.parametrize(
    ("data", "label", "text"),
    [
        ("Привет".encode("cp1251"), "windows-1251", "Привет"),
        ("Zürich".encode("latin-1"), " ISO-8859-1", "Zürich"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("日本".encode("utf-16"), "utf-8", "日本"),
        ("Zürich".encode(), None, "Zürich"),
        ("Zürich".encode("latin-1"), None, "Zürich"),
        (
            '<meta http-equiv="content-type" content="text/html; charset=koi8-r">да'.encode("koi8-r"),
            None,
            "да",
        ),
        ('<?xml version="1.0" encoding="euc-kr"?><a>한국'.encode("euc-kr"), None, "<a>한국"),
        ('<?xml version="1.0"?><a>한국'.encode("utf-16-le"), None, "<a>한국"),
    ],
)
def test_a_page_is_read_in_the_encoding_it_names(data: bytes, label: str | None, text: str) -> None:
    assert decode(data, label, markup=True).endswith(text)


def test_every_label_leads_to_a_codec_that_is_one_for_texts() -> None:
    for codec in set(CODECS.values()):
        assert b"abc".decode(codec, "replace"), codec


def test_a_signal_ends_the_gateway_while_a_parser_stands_still(tmp_path: Path) -> None:
    """A thread that hangs cannot be stopped and kept the process for as long as it liked."""
    with a_page() as url, a_gateway(tmp_path) as (process, port):
        ask(port, {"url": url("/one")})
        wait_for(lambda: ask(port)["data"][0]["status"] == "done")
        [parser] = parsing_processes(process.pid)
        os.kill(parser, signal.SIGSTOP)
        ask(port, {"url": url("/two")})
        wait_for(lambda: "/two" in Page.asked)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        wait_for(lambda: not Path(f"/proc/{parser}").exists())


def test_a_parsing_process_ends_with_a_gateway_that_was_killed(tmp_path: Path) -> None:
    """Nothing tells it but the end of its pipe."""
    with a_page() as url, a_gateway(tmp_path) as (process, port):
        ask(port, {"url": url("/one")})
        wait_for(lambda: ask(port)["data"][0]["status"] == "done")
        [parser] = parsing_processes(process.pid)
        process.kill()
        process.wait(PATIENCE_S)
        wait_for(lambda: not is_alive(parser))


# ---- A gateway in a process of its own ------------------------------------------------------------------


def environment(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_text()


def is_alive(pid: int) -> bool:
    """A dead orphan may stay a zombie where the first process of a container takes no care of it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def parsing_processes(parent: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, parent_pid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(parent_pid) == parent and state != "Z" and b"headgate.apps.untrusted.child" in words:
            found.append(int(folder.name))
    return found


class Page(BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012 - one server at a time

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.wfile.write(GOOD)

    def log_message(self, format: str, *_: object) -> None: ...  # noqa: A002 - the base class's name


@contextmanager
def a_page() -> Iterator[Callable[[str], str]]:
    Page.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield lambda path: f"http://127.0.0.1:{server.server_port}{path}"
        server.shutdown()


@contextmanager
def a_gateway(folder: Path) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    apps = {"bookmarks": {"model": "m", "allow_private": True}}
    file = {"models": simulated(), "apps": apps, "limits": {"drain_s": 1}}
    (folder / "headgate.yaml").write_text(json.dumps(file))
    command = [sys.executable, "-m", "headgate", "serve", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        first_line = process.stdout.readline()
        yield process, int(first_line.split("http://127.0.0.1:")[1].split(",")[0])
    finally:
        process.kill()
        process.communicate()


def ask(port: int, body: Any = None) -> Any:
    import urllib.request  # noqa: PLC0415

    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/bookmarks", None if body is None else json.dumps(body).encode()
    )
    request.add_header("Content-Type", "application/json")
    request.add_header("Idempotency-Key", "x" if body is None else body["url"])
    with urllib.request.urlopen(request, timeout=20) as answered:
        return json.load(answered)


def wait_for(reached: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < ends_at
        time.sleep(0.02)
