"""Bodies that cost much to read: forms of percent signs, JSON of very many small values, JSON that is nested deeply.

Each is sent to a real gateway. What is measured is the processor time of its event loop's callbacks, and its memory: as
long as one callback runs, everybody else waits.
"""

import json
import socket
from collections.abc import Iterator
from typing import Any, Final

import pytest
from attacks.metered import MB, MOST_CALLBACK_S, MOST_GROWTH, TRIES, Metered, metered
from conftest import Figure
from server.http.front_stage import Play
from server.locked_stage import locked

import headgate
from headgate.core.json_trouble import MAX_DIGITS, MAX_NESTING, MAX_SIGNS

FORM: Final = "application/x-www-form-urlencoded"
CHAT: Final = "/v1/chat/completions"
EMBEDDINGS: Final = "/v1/embeddings"
JOBS: Final = "/v1/jobs"
SIZE: Final = 20 * MB


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    with metered(tmp_path_factory.mktemp("metered"), {}) as running:
        running.ask(
            "POST", CHAT, b'{"model": "simulated/instant", "messages": [{"role": "user", "content": "x"}]}'
        )
        yield running


# ---- Forms --------------------------------------------------------------------------------------------------------


def _log_in(gateway: Metered) -> str:
    body = f"key={gateway.key}&next=/".encode()
    answer = gateway.ask(
        "POST", "/login", body, content_type=FORM, sec_fetch_site="same-origin", x_api_key=""
    )
    assert answer.status == 303
    return answer.headers["set-cookie"].partition(";")[0]


def _begin(gateway: Metered, path: str, *headers: str) -> socket.socket:
    """A form of which nothing but the head is sent."""
    line = socket.create_connection(("127.0.0.1", gateway.port), timeout=20)
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {FORM}",
        "Sec-Fetch-Site: same-origin",
        *headers,
        "",
        "",
    ]
    line.sendall("\r\n".join(lines).encode())
    return line


@pytest.mark.parametrize("size", [1025, 5000, SIZE])
def test_a_login_is_refused_by_its_length_before_any_of_it_arrives(gateway: Metered, size: int) -> None:
    with _begin(gateway, "/login", f"Content-Length: {size}") as line:
        assert line.recv(12) == b"HTTP/1.1 413"


def test_a_login_in_chunks_is_refused_as_soon_as_it_is_too_long(gateway: Metered) -> None:
    with _begin(gateway, "/login", "Transfer-Encoding: chunked") as line:
        for _ in range(3):
            line.sendall(b"190\r\n" + b"k" * 400 + b"\r\n")
        assert line.recv(12) == b"HTTP/1.1 413"


def test_the_forms_of_pages_are_bounded_too(gateway: Metered) -> None:
    cookie = _log_in(gateway)
    for path in ("/keys", "/dead-letters/replay", "/models/pause"):
        with _begin(gateway, path, f"Cookie: {cookie}", "Content-Length: 8193") as line:
            assert line.recv(12) == b"HTTP/1.1 413", path


def test_hostile_percent_signs_do_not_stop_the_others(gateway: Metered, figure: Figure) -> None:
    """The largest form there is, an edited input, among them."""
    cookie = _log_in(gateway)
    job = json.loads(
        gateway.ask("POST", JOBS, b'{"task": "chat", "input": {"model": "nobody", "messages": []}}').body
    )
    job_id = job.get("id", "job_000000000000")
    longest_s = 0.0
    for path, size in (
        ("/login", 1000),
        ("/login", SIZE),
        ("/keys", 8000),
        (f"/dead-letters/{job_id}/replay", 399_990),
    ):
        for unit in (b"%zz", b"%41", b"&a="):
            tries = []
            for _ in range(TRIES):
                gateway.longest_s()
                body = b"input=" + unit * (size // 3)
                try:
                    answer = gateway.ask(
                        "POST", path, body, content_type=FORM, sec_fetch_site="same-origin", cookie=cookie
                    )
                    assert answer.status < 500
                except ConnectionError:
                    assert size == SIZE  # Refused while it was still being sent.
                tries.append(gateway.longest_s())
                if tries[-1] <= MOST_CALLBACK_S:
                    break
            longest_s = max(longest_s, min(tries))
            assert longest_s <= MOST_CALLBACK_S, (path, size, unit, tries)
    figure(
        "hostile forms: longest callback", f"{longest_s * 1000:.0f} ms (≤ {MOST_CALLBACK_S * 1000:.0f} ms)"
    )


# ---- Many small values --------------------------------------------------------------------------------------------


def _too_many() -> dict[str, bytes]:
    return {
        "numbers": b"[%b1]" % (b"1," * (SIZE // 2)),
        "lists": b"[%b1]" % (b"[]," * (SIZE // 3)),
        "objects": b"[%b1]" % (b"{}," * (SIZE // 3)),
        "texts": b"[%b1]" % (b'"",' * (SIZE // 3)),
        "names": b"{%b}" % b",".join(b'"%d":1' % at for at in range(1_500_000)),
        "digits": b"[%b1]" % ((b"7" * 4299 + b",") * (SIZE // 4300)),
        "quotes": b'"' * SIZE,
        "levels": b"[" * SIZE,
        "cut off": b'["%b' % (b"\\" * SIZE),
    }


def _just_allowed() -> dict[str, bytes]:
    signs = MAX_SIGNS - 100
    return {
        "numbers": b"[%b1]" % (b"123456," * signs),
        "lists": b"[%b1]" % (b"[]," * (signs // 2)),
        "objects": b"[%b]" % b",".join(b'{"%07d":123456}' % at for at in range(signs // 3)),
        "names": b"{%b}" % b",".join(b'"%d":1' % at for at in range(signs // 2)),
        "texts": b"[%b1]" % ('"€",'.encode() * signs),
        "messages": b'[%b{"role":"user"}]' % (b'{"role":"user"},' * (signs // 3)),
        "nulls": b"[%b1]" % (b"null," * signs),
        "digits": b"[%b1]" % ((b"7" * MAX_DIGITS + b",") * (SIZE // (MAX_DIGITS + 1))),
        "one text": b'["%b"]' % (b"a" * SIZE),
        "escapes": b'["%b"]' % (rb"\"a\"," * (SIZE // 6)),
        "spaces": b"[%b]" % (b" " * SIZE),
    }


def _bodies(value: bytes) -> dict[str, bytes]:
    """As a request of each kind."""
    return {
        CHAT: b'{"model": "simulated/instant", "messages": [{"role": "user", "content": "x"}], "metadata": %b}'
        % value,
        EMBEDDINGS: b'{"model": "simulated/instant", "input": %b}' % value,
        JOBS: _job(value),
    }


def _job(value: bytes) -> bytes:
    asked = b'{"model": "simulated/instant", "messages": [{"role": "user", "content": "x"}], "x": %b}'
    return b'{"task": "chat", "input": %b}' % (asked % value)


def _measure(gateway: Metered, path: str, body: bytes, **headers: str) -> tuple[int, float, int]:
    """Status, longest callback, and growth of memory beyond the body."""
    statuses = []
    spent = gateway.measure(lambda: statuses.append(gateway.ask("POST", path, body, **headers).status))
    return statuses[-1], spent.callback_s, spent.growth_bytes


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS, JOBS])
def test_too_many_small_values_are_refused_before_they_are_read(
    gateway: Metered, figure: Figure, path: str
) -> None:
    found = {name: _measure(gateway, path, _bodies(value)[path]) for name, value in _too_many().items()}
    figure(
        f"too many values, {path}",
        f"longest callback {max(s for _, s, _ in found.values()) * 1000:.0f} ms,"
        f" growth {max(growth for _, _, growth in found.values()) / MB:.0f} MB",
    )
    assert {name: status for name, (status, _, _) in found.items() if status != 400} == {}
    assert {name: s for name, (_, s, _) in found.items() if s > MOST_CALLBACK_S} == {}
    assert {name: growth for name, (_, _, growth) in found.items() if growth > MOST_GROWTH} == {}


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS, JOBS, f"{CHAT} as a job"])
def test_as_many_as_are_allowed_do_not_stop_the_others(gateway: Metered, figure: Figure, path: str) -> None:
    path, _, as_job = path.partition(" ")
    headers = {"prefer": "respond-async"} if as_job else {}
    found = {
        name: _measure(gateway, path, _bodies(value)[path], **headers)
        for name, value in _just_allowed().items()
    }
    figure(
        f"as many values as are allowed, {path} {as_job}",
        f"longest callback {max(s for _, s, _ in found.values()) * 1000:.0f} ms,"
        f" growth {max(growth for _, _, growth in found.values()) / MB:.0f} MB",
    )
    assert {name: status for name, (status, _, _) in found.items() if status >= 500} == {}
    assert {name: s for name, (_, s, _) in found.items() if s > MOST_CALLBACK_S} == {}
    assert {name: growth for name, (_, _, growth) in found.items() if growth > MOST_GROWTH} == {}


def test_what_people_really_send_is_served(gateway: Metered) -> None:
    image = "data:image/png;base64," + "iVBORw0KGgo" * (19 * MB // 11)
    content = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": image}}]
    tokens = [[at % 100_000 for at in range(start, start + 1000)] for start in range(0, 300_000, 1000)]
    table = "1.5,2.5,[3],{4}:5\\n" * (MB // 10)
    for path, body in (
        (CHAT, {"messages": [{"role": "user", "content": content}]}),
        (CHAT, {"messages": [{"role": "user", "content": table}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x"}] * 2000}),
        (EMBEDDINGS, {"input": [token for row in tokens for token in row]}),
        (EMBEDDINGS, {"input": tokens}),
    ):
        answer = gateway.ask("POST", path, json.dumps({"model": "simulated/instant", **body}).encode())
        assert b"values" not in answer.body, answer
        assert answer.status in {200, 400}, answer
    jobs = [
        {
            "task": "chat",
            "input": {"model": "simulated/instant", "messages": [{"role": "user", "content": "x" * 15_000}]},
        }
    ]
    assert gateway.ask("POST", JOBS, json.dumps(jobs * 1000).encode()).status == 202


# ---- Nesting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [MAX_NESTING - 10, MAX_NESTING + 1, 500, 900, *range(935, 1000), 5000])
def test_however_deep_a_job_is_nested_it_is_taken_or_refused(gateway: Metered, levels: int) -> None:
    deep = b"[" * levels + b"null" + b"]" * levels
    answer = gateway.ask("POST", JOBS, _job(deep))
    assert answer.status == (202 if levels < MAX_NESTING else 400), answer
    if answer.status == 202:
        job = json.loads(gateway.ask("GET", f"{JOBS}/{json.loads(answer.body)['id']}?wait=20").body)
        assert job["state"] in {"completed", "dead_letter"}


@pytest.mark.parametrize("path", [CHAT, EMBEDDINGS, JOBS])
def test_one_bound_on_nesting_holds_wherever_json_enters(gateway: Metered, path: str) -> None:
    for levels in (MAX_NESTING - 20, MAX_NESTING + 1, 945, 960, 5000):
        deep = b'{"a":' * levels + b"1" + b"}" * levels
        answer = gateway.ask("POST", path, _bodies(deep)[path])
        told = b"nested too deeply: it has more than 200 levels" in answer.body
        assert told == (levels > MAX_NESTING), (levels, answer)
        assert answer.status < 500


def test_on_every_store_a_job_as_deep_as_may_be_is_done_and_shown(play: Play, database: str) -> None:
    async def scene() -> None:
        async with locked(database=database, work=True) as gateway:
            key = f"x-api-key: {await gateway.key()}"
            for levels in (MAX_NESTING - 2, MAX_NESTING - 1, 957, 960):
                deep = b"[" * levels + b"null" + b"]" * levels
                answer = await gateway.post(JOBS, _job(deep), key)
                if levels > MAX_NESTING - 2:
                    assert (answer.status, answer.code) == (400, "invalid_request"), levels
                    continue
                shown = await gateway.get(f"{answer.headers['location']}?wait=9", key)
                job = json.loads(shown.body)
                assert job["state"] == "completed", job["error"]
                assert json.dumps(job["input"]["x"]).encode() == deep
                assert (await gateway.get("/v1/jobs", key)).status == 200

    play(scene)


def test_what_python_hands_in_has_the_same_bound(play: Play) -> None:
    async def scene() -> None:
        async with headgate.open({"data_dir": "data"}, env={}) as gateway:
            for levels in (MAX_NESTING, 957, 2000):
                deep: list[Any] = [None]
                for _ in range(levels):
                    deep = [deep]
                given = {"model": "simulated", "messages": [{"role": "user", "content": "x"}], "x": deep}
                with pytest.raises(headgate.InvalidRequest, match=r"nested|recursion"):
                    await gateway.jobs.submit("chat", given)

    play(scene)
