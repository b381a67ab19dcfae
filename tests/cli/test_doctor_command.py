"""`headgate doctor`: it finds what is wrong, says what to do, takes seconds, and its exit code can be relied on."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from cli.command_stage import Answer, Desk
from providers.stubs.openai import JSON
from providers.stubs.scripted import HANG, Reply, ScriptedServer


@contextmanager
def serving(*replies: Reply) -> Iterator[str]:
    """A stub in a loop of its own: the command has one, too."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = ScriptedServer(*replies)
    asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(5)
    try:
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(_closed(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _closed(server: ScriptedServer) -> None:
    await server.__aexit__(None, None, None)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def upstream(url: str, model: str = "gpt-5") -> dict[str, Any]:
    return {"provider": "openai", "model": model, "base_url": f"{url}/v1", "api_key": "sk-0123456789abcdef"}


def examine(desk: Desk, *upstreams: Any, columns: int = 100, **settings: Any) -> Answer:
    models = {"models": {"summary": {"upstreams": list(upstreams)}}} if upstreams else {}
    told = {"data_dir": "data", "listen": f"127.0.0.1:{_free_port()}", **models, **settings}
    (desk.folder / "headgate.yaml").write_text(json.dumps(told))
    return desk.run("doctor", columns=columns)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


MODELS = Reply(json.dumps({"object": "list", "data": [{"id": "gpt-5"}]}).encode(), headers=JSON)
WRONG_KEY = Reply(b'{"error": {"message": "Incorrect API key"}}', status=401, headers=JSON)


def test_an_installation_that_works_is_told_so(desk: Desk) -> None:
    desk.run("keys", "create", "app")
    with serving(MODELS) as url:
        answer = examine(desk, upstream(url))

    assert answer.code == 0, answer.out
    assert "fail" not in answer.out
    assert re.search(r"^ok +database +sqlite data/headgate.db, schema \d+$", answer.out, re.MULTILINE)
    assert re.search(r"^ok +keys +1 in force$", answer.out, re.MULTILINE)
    assert re.search(r"^ok +port +127.0.0.1:\d+ is free$", answer.out, re.MULTILINE)
    assert re.search(r"^ok +summary openai/gpt-5 +answers, and has gpt-5$", answer.out, re.MULTILINE)


def test_every_upstream_s_trouble_is_told_with_what_to_do(desk: Desk) -> None:
    with serving(WRONG_KEY) as locked, serving(MODELS) as other:
        answer = examine(
            desk, upstream(locked), upstream(other, "gpt-5-mini"), upstream("http://127.0.0.1:1")
        )

    assert answer.code == 1
    told = " ".join(answer.out.split())
    assert "summary 1. openai/gpt-5 401 from" in told
    assert "Incorrect API key" in told
    assert "answers, but has no gpt-5-mini → correct `model`; did you mean 'gpt-5'?" in told
    assert "http://127.0.0.1:1 could not be reached" in told
    assert "3 failed" in told
    assert "sk-0123456789abcdef" not in answer.out


def test_upstreams_that_say_nothing_are_waited_for_together_and_not_long(desk: Desk) -> None:
    with serving(Reply(ending=HANG, silent=True)) as url:
        began = time.monotonic()
        answer = examine(desk, *(upstream(url, f"m{number}") for number in range(8)))

    assert time.monotonic() - began < 8
    assert answer.out.count("no answer within 5 s") == 8
    assert answer.code == 1


def test_a_port_that_something_else_has_is_told_with_who(desk: Desk) -> None:
    with serving(Reply(b"hello")) as url:
        answer = examine(desk, listen=url.removeprefix("http://"))

    assert answer.code == 1
    told = " ".join(answer.out.split())  # However its lines were broken.
    assert re.search(r"fail port 127.0.0.1:\d+: it is taken by pid \d+ \(", told)


def test_an_address_for_everybody_needs_keys(desk: Desk) -> None:
    answer = examine(desk, listen=f"0.0.0.0:{_free_port()}")

    assert answer.code == 1
    assert re.search(r"fail +keys +none, and others can reach 0.0.0.0", answer.out)


def test_a_database_that_does_not_open_is_told(desk: Desk) -> None:
    (desk.folder / "data").mkdir()
    (desk.folder / "data" / "headgate.db").write_bytes(b"this is no database, but a longer text " * 200)
    answer = examine(desk)

    assert answer.code == 1
    assert re.search(r"^fail +database +\S", answer.out, re.MULTILINE)
    assert re.search(r"^warn +keys +not known", answer.out, re.MULTILINE)


def test_without_settings_it_says_how_to_begin(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OLLAMA_HOST"):
        monkeypatch.delenv(name, raising=False)
    (desk.folder / "headgate.yaml").unlink()
    answer = desk.run("doctor")

    assert "no file, so the defaults" in answer.out
    assert re.search(r"warn +upstreams +none: only the simulated model answers", answer.out)
    assert not (desk.folder / ".headgate" / "headgate.db").exists()


def test_wrong_settings_are_told_all_together(desk: Desk) -> None:
    (desk.folder / "headgate.yaml").write_text("listne: x\nmodels: {m: {upstreams: [{provider: nobody}]}}\n")
    answer = desk.run("doctor")

    assert answer.code == 2
    assert "listne" in answer.err
    assert "nobody" in answer.err


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_no_word_is_cut_and_no_line_too_wide(desk: Desk, columns: int) -> None:
    answer = examine(desk, upstream("http://127.0.0.1:1"), columns=columns)

    assert max(map(len, answer.out.splitlines())) <= columns
    assert "…" not in answer.out
    assert "Check base_url, the network and proxies" in " ".join(answer.out.split())


def test_json_has_the_same(desk: Desk) -> None:
    examine(desk)
    told = desk.run("doctor", "--json").json["data"]

    assert {"settings", "data folder", "database", "keys", "port", "clock"} <= {one["check"] for one in told}
    assert {tuple(one) for one in told} == {("check", "state", "found", "advice")}
