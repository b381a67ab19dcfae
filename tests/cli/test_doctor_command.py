"""`headgate doctor`: it finds what is wrong, says what to do, takes seconds, and its exit code can be relied on."""

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from cli.command_stage import Answer, Desk, until
from cli.command_stage import serving as at_desk
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


# ---- A base_url that leads elsewhere ---------------------------------------------------------------------------------

LIST = ("application/json", b'{"object": "list", "data": [{"id": "gpt-5"}]}')
NO_ROUTE = ("application/json", b'{"error": {"code": "404", "message": "Resource not found"}}')
NO_PAGE = ("text/html; charset=utf-8", b"<html><h1>Not Found</h1></html>")


@contextmanager
def site(*pages: str, missing: tuple[str, bytes] = NO_ROUTE, status: int = 200) -> Iterator[str]:
    """A server with a list of models at these paths and 404 at all others: its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            there = self.path.partition("?")[0] in pages
            kind, body = LIST if there else missing
            self.send_response(status if there else 404)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def finding(desk: Desk, base_url: str, **options: Any) -> tuple[int, dict[str, str]]:
    """What the doctor says of one upstream there."""
    settings = {"provider": "openai", "model": "gpt-5", "base_url": base_url, **options}
    answer = examine(desk, settings)
    [found] = [one for one in desk.run("doctor", "--json").json["data"] if one["check"].startswith("summary")]
    return answer.code, found


@pytest.mark.parametrize("path", ["", "/", "/tenant-a"])
def test_a_base_url_without_its_version_path_is_corrected(desk: Desk, path: str) -> None:
    with site(f"{path.rstrip('/')}/v1/models") as url:
        code, found = finding(desk, url + path)

    right = f"{url}{path.rstrip('/')}/v1"
    assert code == 1
    assert (found["state"], found["advice"]) == ("fail", f"set base_url: {right}")
    assert found["found"] == f"answers, but its list of models is at {right}/models"


def test_ollama_s_own_address_for_the_provider_openai_is_corrected(desk: Desk) -> None:
    """Its own routes are elsewhere, and what it does not know it refuses in plain text."""
    missing = ("text/plain", b"404 page not found")
    with site("/", "/api/tags", "/v1/models", missing=missing) as url:
        code, found = finding(desk, url)

    assert (code, found["state"], found["advice"]) == (1, "fail", f"set base_url: {url}/v1")


def test_a_version_path_that_asks_for_a_key_is_found_too(desk: Desk) -> None:
    with site("/v1/models", status=401) as url:
        code, found = finding(desk, url)

    assert (code, found["state"], found["advice"]) == (1, "fail", f"set base_url: {url}/v1")


@pytest.mark.parametrize("path", ["/v1", "/v1beta/openai", "/openai/deployments/gpt-5"])
def test_a_server_without_a_list_is_left_as_it_is(desk: Desk, path: str) -> None:
    """Azure has none under a deployment: it can be called all the same."""
    with site() as url:
        code, found = finding(desk, url + path, query={"api-version": "2024-10-21"})

    assert code == 0
    assert (found["state"], found["advice"]) == ("ok", "")
    assert found["found"] == "answers; it lists no models, so gpt-5 is not checked"


def test_without_any_path_and_any_list_the_version_path_is_suggested(desk: Desk) -> None:
    """It may be right: some servers have their routes at the root."""
    with site() as url:
        code, found = finding(desk, url)

    assert (code, found["state"]) == (0, "warn")
    assert found["advice"] == f"most servers have a version path: try base_url: {url}/v1"


def test_another_server_on_that_port_is_doubted(desk: Desk) -> None:
    with site(missing=NO_PAGE) as url:
        code, found = finding(desk, f"{url}/v1")

    assert (code, found["state"]) == (0, "warn")
    assert found["found"] == "answers; 404 in text/html instead of a list of models, so gpt-5 is not checked"
    assert (
        found["advice"] == "does this server speak OpenAI's format? Check the host, port and path of base_url"
    )


def test_a_wrong_port_is_told_as_one(desk: Desk) -> None:
    code, found = finding(desk, f"http://127.0.0.1:{_free_port()}/v1")

    assert (code, found["state"]) == (1, "fail")
    assert "could not be reached" in found["found"]


def test_a_family_is_warned_of_a_wrong_base_url_too(desk: Desk) -> None:
    with site("/v1/models") as url:
        upstreams = [{"provider": "openai", "base_url": url}]
        answer = examine(desk, models={"openai/*": {"upstreams": upstreams}})

    assert answer.code == 1
    assert f"set base_url: {url}/v1" in " ".join(answer.out.split())


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


# ---- A gateway that runs -----------------------------------------------------------------------------------------------


MODELS_AT_WORK: dict[str, Any] = {
    "wrong": {"upstreams": [{"provider": "simulated", "latency_s": 0, "outcome": "misconfigured"}]},
    "down": {
        "upstreams": [
            {"provider": "simulated", "latency_s": 0, "outcome": "transient"},
            {"provider": "simulated", "model": "instant"},
        ],
        "retry": {"max_attempts": 1},
    },
    "fine": {"upstreams": [{"provider": "simulated", "latency_s": 0}]},
    "stopped": {"upstreams": [{"provider": "simulated", "latency_s": 0}]},
}


@contextmanager
def at_work(desk: Desk) -> Iterator[str]:
    """A gateway that serves these models, where the settings say."""
    settings = {"data_dir": "data", "models": MODELS_AT_WORK}
    (desk.folder / "headgate.yaml").write_text(json.dumps(settings))
    with at_desk(desk) as url:
        listen = url.removeprefix("http://")
        (desk.folder / "headgate.yaml").write_text(json.dumps({**settings, "listen": listen}))
        yield url


def _call(url: str, model: str, key: str = "") -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers, timeout=30).status_code


def test_what_a_running_gateway_knows_of_each_upstream_is_told(desk: Desk) -> None:
    with at_work(desk) as url:
        for _ in range(12):
            assert [_call(url, model) for model in ("wrong", "down", "fine")] == [502, 200, 200]
        assert desk.run("models", "pause", "stopped").code == 0
        until(lambda: "paused by an operator" in desk.run("doctor").out)
        answer = desk.run("doctor", columns=140)
        found = {one["check"]: one for one in desk.run("doctor", "--json").json["data"]}

    assert answer.code == 1
    assert re.search(r"^ok +running: fine +simulated is open; no limit learned$", answer.out, re.MULTILINE)
    wrong, down, spare = found["running: wrong"], found["running: down 1."], found["running: down 2."]
    assert (wrong["state"], down["state"], spare["state"]) == ("fail", "fail", "ok")
    assert re.match(
        r"simulated is held: misconfigured; next probe in \d+ s; no limit learned", wrong["found"]
    )
    assert re.match(
        r"simulated is closed: failing; (the next call is the probe|next probe in \d+ s); no limit learned; \d+%",
        down["found"],
    )
    assert spare["found"] == "simulated/instant is open; no limit learned"
    stopped = found["running: stopped"]
    assert (stopped["state"], stopped["advice"]) == ("warn", "headgate models resume stopped")


def test_a_gateway_with_keys_shows_its_upstreams_to_one_that_may_read(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = desk.run("keys", "create", "reader", "--role", "read").out.strip()
    caller = desk.run("keys", "create", "caller").out.strip()
    with at_work(desk):
        without = desk.run("doctor").out
        monkeypatch.setenv("HEADGATE_API_KEY", caller)
        with_callers = desk.run("doctor").out
        monkeypatch.setenv("HEADGATE_API_KEY", reader)
        with_readers = desk.run("doctor")

    needs = r"^ok +running +127.0.0.1:\d+ shows its upstreams to keys of the role read: put one into HEADGATE_API_KEY$"
    assert re.search(needs, without, re.MULTILINE)
    assert re.search(needs, with_callers, re.MULTILINE)
    assert re.search(r"^ok +running: fine +simulated is open", with_readers.out, re.MULTILINE)
    assert reader not in with_readers.out


def test_a_gateway_of_another_version_is_told_as_such(desk: Desk) -> None:
    """What it says of its upstreams cannot be read."""
    ready = Reply(b'{"status": "ready"}', headers=JSON)
    with serving(ready, Reply(b'{"upstreams": [{"model": 1}]}', headers=JSON)) as url:
        answer = examine(desk, listen=url.removeprefix("http://"))

    assert re.search(r"^warn +running +the gateway does not show its upstreams: ", answer.out, re.MULTILINE)
