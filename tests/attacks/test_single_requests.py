"""One request, or a few that belong together: none may stop the event loop, or take much more memory than its body.

`ATTACKS` is the table. To add a finding, write a function that prepares it and returns the act that is measured.
"""

import contextlib
import itertools
import json
import socket
import string
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
from attacks.metered import MB, MOST_CALLBACK_S, MOST_GROWTH, Metered, metered
from conftest import Figure
from server.http.front_stage import Answer

from headgate.core.waiting import MAX_BYTES

FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data; boundary=b"
CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
JOBS: Final = "/v1/jobs"
SIZE: Final = 19 * MB
MAX_ANSWER_BYTES: Final = 4096
MODELS: Final[dict[str, Any]] = {
    f"team/model-{number}-name": {
        "upstreams": [
            {"provider": "openai", "model": "m", "base_url": "http://127.0.0.1:9/v1", "api_key": "x"}
        ]
    }
    for number in range(50)
}
ASKED: Final = {"model": "simulated/instant", "messages": [{"role": "user", "content": "x"}]}
JOB: Final = {"task": "chat", "input": ASKED}
Act = Callable[[], Answer]
"""What is measured. Its last answer is small and below 500."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    with metered(tmp_path_factory.mktemp("single"), {"models": MODELS}) as running:
        assert running.ask("POST", CHAT, json.dumps(ASKED).encode()).status == 200
        yield running


# ---- How they are made --------------------------------------------------------------------------------------------


def _get(path: str, **headers: str) -> Callable[[Metered], Act]:
    return lambda gateway: lambda: gateway.ask("GET", path, None, **headers)


def _post(path: str, build: Callable[[], bytes], **headers: str) -> Callable[[Metered], Act]:
    def prepare(gateway: Metered) -> Act:
        body = build()
        return lambda: gateway.ask("POST", path, body, **headers)

    return prepare


def _json(path: str, build: Callable[[], object], **headers: str) -> Callable[[Metered], Act]:
    return _post(path, lambda: json.dumps(build(), ensure_ascii=False).encode(), **headers)


def _form(path: str, unit: bytes, size: int) -> Callable[[Metered], Act]:
    def prepare(gateway: Metered) -> Act:
        body, cookie = b"input=" + unit * (size // len(unit)), log_in(gateway)
        return lambda: gateway.ask(
            "POST", path, body, content_type=FORM, sec_fetch_site="same-origin", cookie=cookie
        )

    return prepare


def log_in(gateway: Metered) -> str:
    body = f"key={gateway.key}&next=/".encode()
    answer = gateway.ask(
        "POST", "/login", body, content_type=FORM, sec_fetch_site="same-origin", x_api_key=""
    )
    assert answer.status == 303
    return answer.headers["set-cookie"].partition(";")[0]


def upload(gateway: Metered, lines: bytes) -> str:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%b\r\n--b--\r\n' % lines
    )
    answer = gateway.ask("POST", "/v1/files", body, content_type=MULTIPART)
    return str(json.loads(answer.body)["id"])


def _line(number: int, model: str) -> bytes:
    body = {**ASKED, "model": model}
    line = {"custom_id": str(number), "method": "POST", "url": CHAT, "body": body}
    return json.dumps(line).encode() + b"\n"


def _batch(model: Callable[[int], str]) -> Callable[[Metered], Act]:
    """250 lines, checked until the end."""

    def prepare(gateway: Metered) -> Act:
        file_id = upload(gateway, b"".join(_line(number, model(number)) for number in range(250)))
        asked = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}

        def act() -> Answer:
            answer = gateway.ask("POST", "/v1/batches", json.dumps(asked).encode())
            batch_id = json.loads(answer.body)["id"]
            for _ in range(200):
                batch = json.loads(gateway.ask("GET", f"/v1/batches/{batch_id}").body)
                if batch["status"] == "failed":
                    return Answer(200, {}, json.dumps(batch["status"]).encode())
                time.sleep(0.05)
            raise AssertionError(batch)

        return act

    return prepare


def _job_page(value: bytes, *, dead: bool = False) -> Callable[[Metered], Act]:
    """The dashboard's page of a job, or of a dead letter, with this in its input."""

    def prepare(gateway: Metered) -> Act:
        model = "simulated/down" if dead else "simulated/instant"
        job = {"task": "chat", "input": {**ASKED, "model": model}, "max_attempts": 1}
        body = json.dumps(job).encode().replace(b'"messages"', b'"x": %b, "messages"' % value)
        job_id = json.loads(gateway.ask("POST", JOBS, body).body)["id"]
        ended = json.loads(gateway.ask("GET", f"{JOBS}/{job_id}?wait=20").body)
        assert ended["state"] == "dead_letter" if dead else "completed"
        path, cookie = f"/dead-letters/{job_id}" if dead else f"/jobs/{job_id}", log_in(gateway)

        def act() -> Answer:
            page = gateway.ask("GET", path, cookie=cookie)
            assert b"<h1>" in page.body
            assert len(page.body) < 200_000
            return Answer(page.status, {}, b"")

        return act

    return prepare


def _names(count: int) -> str:
    letters = string.ascii_lowercase + string.digits
    names = ["".join(letter) for letter in itertools.islice(itertools.product(letters, repeat=3), count)]
    return "&".join([*names, names[-1]])


def _chat_with(value: Callable[[], bytes]) -> Callable[[], bytes]:
    return lambda: json.dumps(ASKED).encode()[:-1] + b', "metadata": %b}' % value()


def _quoted(escape: str, size: int) -> str:
    return 'a="' + escape * (size // len(escape)) + '"'


# ---- The table ----------------------------------------------------------------------------------------------------

ATTACKS: Final[dict[str, Callable[[Metered], Act]]] = {
    # Forms of percent signs (H1).
    "H1 a login of percent signs": _form("/login", b"%zz", 1000),
    "H1 a form of percent signs": _form("/keys", b"%41", 8000),
    "H1 an edited input of percent signs": _form("/dead-letters/job_000000000000/replay", b"%zz", 399_990),
    "H1 an edited input of ampersands": _form("/dead-letters/job_000000000000/replay", b"&a=", 399_990),
    # Many small values, and nesting (L5, L8).
    "L5 lists in a call": _post(CHAT, _chat_with(lambda: b"[%b1]" % (b"[]," * (SIZE // 3)))),
    "L5 names in a call": _post(
        CHAT, _chat_with(lambda: b"{%b}" % b",".join(b'"%d":1' % at for at in range(1_500_000)))
    ),
    "L5 numbers to embed": _post(
        EMBEDDINGS, lambda: b'{"model": "simulated/instant", "input": [%b1]}' % (b"1," * (SIZE // 2))
    ),
    "L5 objects in a job": _post(JOBS, lambda: b'{"task": "chat", "input": [%b1]}' % (b"{}," * (SIZE // 3))),
    "L8 levels in a call": _post(CHAT, _chat_with(lambda: b"[" * SIZE)),
    "L8 levels in a job": _post(JOBS, lambda: b'{"task": "chat", "input": %b' % (b"[" * SIZE)),
    # Cookies (A1): anybody may send one.
    "A1 an escaped cookie, any path": _get("/health", x_api_key="", cookie=_quoted("\\1", 62_000)),
    "A1 a shorter one, any path": _get("/health", x_api_key="", cookie=_quoted("\\1", 15_000)),
    "A1 a shorter one, a page": _get("/", x_api_key="", cookie=_quoted("\\1", 15_000)),
    "A1 a shorter one, a page, with a key": _get("/", cookie=_quoted("\\1", 15_000)),
    "A1 a shorter one, logging out": _post(
        "/logout", lambda: b"", sec_fetch_site="same-origin", cookie=_quoted("\\1", 15_000)
    ),
    "A1 many cookies": _get("/health", x_api_key="", cookie="a=;" * 5000),
    # Queries (A5).
    "A5 a name that comes twice among many": _get(f"/v1/requests?{_names(16_000)}"),
    "A5 as many as a first request may have": _get(f"/v1/requests?{_names(4000)}"),
    "A5 many names, any page": _get(f"/login?{'&a=%zz' * 2500}", x_api_key=""),
    # Errors that quote what was sent (A11).
    "A11 a long name": _json(JOBS, lambda: {"x" * SIZE: 1}),
    "A11 a long name of places": _json(JOBS, lambda: {" - at `$" * (SIZE // 8): 1}),
    "A11 a long name in a list": _json(JOBS, lambda: [{**JOB, "x" * SIZE: 1}]),
    "A11 a long name for a pause": _json("/v1/models/pause", lambda: {"x" * SIZE: 1}),
    "A11 a long name in a batch": _json("/v1/batches", lambda: {"x" * SIZE: 1}),
    "A11 a long lane": _json(JOBS, lambda: {**JOB, "lane": "x" * SIZE}),
    "A11 a long lane of signs": _json(JOBS, lambda: {**JOB, "lane": "€" * (SIZE // 3)}),
    "A11 a long task": _json(JOBS, lambda: {**JOB, "task": "x" * SIZE}),
    "A11 a long model": _json(CHAT, lambda: {**ASKED, "model": "x" * SIZE}),
    "A11 a long path": _get("/v1/nothing/" + "x" * 60_000),
    # Batches (A12).
    "A12 misspelt models": _batch(lambda number: f"team/model-{number}-nam{number}"),
    "A12 long models": _batch(lambda number: f"{number}" + "team/model-" * 22),
    # Pages (A13).
    "A13 a job of small values": _job_page(b"[" * 190 + b"[%b1]" % (b"1," * 300_000) + b"]" * 190),
    "A13 a job of small objects": _job_page(b'[%b{"a":1}]' % (b'{"a":1},' * 100_000)),
    "A13 a dead letter of small values": _job_page(
        b"[" * 190 + b"[%b1]" % (b"1," * 300_000) + b"]" * 190, dead=True
    ),
    "A13 a job of one text": _job_page(b'"%b"' % ("€\\u202e".encode() * 300_000)),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_no_request_stops_the_others(gateway: Metered, figure: Figure, name: str) -> None:
    act = ATTACKS[name](gateway)
    answers: list[Answer] = []
    spent = gateway.measure(lambda: answers.append(act()))
    figure(name, f"{spent} (≤ {MOST_CALLBACK_S * 1000:.0f} ms, {MOST_GROWTH / MB:.0f} MB)")
    assert spent.allowed, str(spent)
    assert {answer.status for answer in answers if answer.status >= 500} == set()
    assert max(len(answer.body) for answer in answers) <= MAX_ANSWER_BYTES


# ---- Many at once -------------------------------------------------------------------------------------------------


def _held(gateway: Metered, request: bytes, count: int) -> int:
    """The growth of memory while so many connections have sent this and wait."""
    before = gateway.forget_memory()
    with ExitStack() as stack:
        for _ in range(count):
            line = stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), timeout=20))
            with contextlib.suppress(ConnectionError):
                line.sendall(request)
        time.sleep(1)
        assert gateway.ask("GET", "/health").status == 200
        return gateway.most_memory() - before


def test_bodies_that_never_end_take_half_of_the_room_at_the_most(gateway: Metered, figure: Figure) -> None:
    """A10: 20 of 19.9 MB, each without its last byte."""
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nx-api-key: {gateway.key}\r\nContent-Length: {SIZE + 40}\r\n\r\n"
    )
    growth = _held(gateway, head.encode() + b'{"model":"simulated/instant","x":"' + b"x" * SIZE, 20)
    figure("A10 20 bodies of 19 MB that never end", f"{growth / MB:+.0f} MB")
    assert growth <= MAX_BYTES // 2 + MOST_GROWTH


def test_heads_that_never_end_are_short_where_no_key_was_shown(gateway: Metered, figure: Figure) -> None:
    """A17c."""
    request = b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 64_000
    growth = _held(gateway, request, 800)
    figure("A17c 800 heads of 64 KB that never end", f"{growth / MB:+.0f} MB")
    assert growth <= 32 * MB
