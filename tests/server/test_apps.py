"""Applications as HTTP: let in, read strictly, streams that are honest, and nobody's ids but one's own."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from server.http.front_stage import Play, eventually
from server.locked_stage import Locked, locked

import headgate
from headgate import AppCall, AppDoor, AppReply, AppRoute, AppStream
from headgate.core.access import Role

WORDS = "hunter2"


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """A body."""

    name: str
    number: int = 1


class Look(msgspec.Struct, forbid_unknown_fields=True):
    """A query."""

    limit: int = 20


class Toy:
    """An application that tells what it was given."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.reading = asyncio.Event()
        self.closed = 0
        self.cancelled = 0

    def routes(self) -> list[AppRoute]:
        return [
            AppRoute(
                method="POST", path="/toy", handle=self.make, body=Wish, summary="Make", answers={201: Wish}
            ),
            AppRoute(method="GET", path="/toy", handle=self.tell, query=Look, door=AppDoor.LOOK),
            AppRoute(method="GET", path="/toy/{job_id}", handle=self.job, door=AppDoor.LOOK),
            AppRoute(method="GET", path="/page", handle=self.page, door=AppDoor.OPEN),
            AppRoute(method="POST", path="/broken", handle=self.broken),
            AppRoute(method="POST", path="/slow", handle=self.slow),
            AppRoute(method="POST", path="/stream", handle=self.stream, body=Wish, streams=True),
        ]

    async def make(self, call: AppCall) -> AppReply:
        return AppReply(value=call.body, status=201, headers={"x-by": call.by, "x-key": str(call.key)})

    async def tell(self, call: AppCall) -> AppReply:
        return AppReply(value={"tenant": call.tenant, "limit": call.query.limit, "route": call.route})

    async def job(self, call: AppCall) -> AppReply:
        return AppReply(value=call.path["job_id"] if call.path["job_id"] == call.tenant else _nobody(call))

    async def page(self, call: AppCall) -> AppReply:
        return AppReply(value=b"<p>hello", media_type="text/html")

    async def broken(self, call: AppCall) -> AppReply:
        raise RuntimeError(WORDS)

    async def slow(self, call: AppCall) -> AppReply:
        self.reading.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return AppReply(value="done")

    async def stream(self, call: AppCall) -> AppStream:
        match call.body.name:
            case "refused":
                raise headgate.QueueFull("full", retry_after_s=7.0)
            case how:
                return AppStream(pieces=self._pieces(how), close=self._close)

    async def _pieces(self, how: str) -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        self.reading.set()
        if how == "fails":
            raise headgate.DeadlineExceeded("time is up")
        if how == "breaks":
            raise RuntimeError(WORDS)
        if how == "waits":
            await self.gate.wait()
        yield b"data: 2\n\n"

    async def _close(self) -> None:
        self.closed += 1


def _nobody(call: AppCall) -> Any:
    raise headgate.UnknownJob(call.path["job_id"])


Scene = Callable[[Locked, Toy, str], Any]


def _play(play: Play, scene: Scene, **terms: Any) -> None:
    async def main() -> None:
        toy = Toy()
        async with locked(mount=lambda _: toy.routes()) as gateway:
            key = await gateway.key(role=Role.CALL, **terms)
            await scene(gateway, toy, f"x-api-key: {key}")
            toy.gate.set()

    play(main)


def test_a_route_is_given_who_calls_what_was_said_and_its_key(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        made = await gateway.post("/toy", {"name": "n"}, key, "Idempotency-Key: k")
        assert (made.status, json.loads(made.body)) == (201, {"name": "n", "number": 1})
        assert (made.headers["x-by"], made.headers["x-key"]) == ("app", "k")
        told = await gateway.get("/toy?limit=3", key)
        assert json.loads(told.body) == {"tenant": "t1", "limit": 3, "route": "GET /toy"}

    _play(play, scene, tenant="t1")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param"),
    [
        ("POST", "/toy", {"name": 7}, 400, "name"),
        ("POST", "/toy", {"name": "n", "surprise": 1}, 400, "surprise"),
        ("POST", "/toy", b"{", 400, None),
        ("POST", "/toy?limit=1", {"name": "n"}, 400, "limit"),
        ("GET", "/toy?limit=many", None, 400, "limit"),
        ("GET", "/toy?limit=1&limit=2", None, 400, "limit"),
        ("GET", "/page?x=1", None, 400, "x"),
        ("DELETE", "/toy", None, 405, None),
    ],
)
def test_it_is_read_strictly(
    play: Play, method: str, path: str, body: Any, status: int, param: str | None
) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        answer = await gateway.ask(method, path, body, key)
        assert (answer.status, json.loads(answer.body)["error"]["param"]) == (status, param)

    _play(play, scene)


def test_each_door_lets_in_whom_it_should(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        reader = f"x-api-key: {await gateway.key(role=Role.READ)}"
        assert (await gateway.get("/toy", reader)).status == 200
        assert (await gateway.post("/toy", {"name": "n"}, reader)).status == 403
        assert (await gateway.get("/toy")).status == 401
        page = await gateway.get("/page")
        assert (page.status, page.body, page.headers["content-type"]) == (
            200,
            b"<p>hello",
            "text/html; charset=utf-8",
        )

    _play(play, scene)


def test_a_foreign_id_looks_like_an_unknown_one(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        assert (await gateway.get("/toy/t1", key)).status == 200
        foreign, unknown = await gateway.get("/toy/t2", key), await gateway.get("/toy/t3", key)
        assert (foreign.status, foreign.body.replace(b"t2", b"t3")) == (404, unknown.body)

    _play(play, scene, tenant="t1")


def test_a_process_that_goes_away_takes_no_new_work_but_shows_what_there_is(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        gateway.house.serving._closing.set()
        answer = await gateway.post("/toy", {"name": "n"}, key)
        assert (answer.status, answer.code) == (503, "draining")
        assert (await gateway.get("/toy", key)).status == 200

    _play(play, scene)


@pytest.mark.provokes_internal_error
def test_what_nobody_foresaw_is_500_without_its_words(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        answer = await gateway.post("/broken", None, key)
        assert (answer.status, WORDS.encode() in answer.body, WORDS in caplog.text) == (500, False, False)
        assert "/broken broke" in caplog.text
        caplog.clear()

    _play(play, scene)


def test_who_leaves_cancels_the_work(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        asking = asyncio.ensure_future(gateway.post("/slow", None, key))
        await toy.reading.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: toy.cancelled)

    _play(play, scene)


# ---- Streams -----------------------------------------------------------------------------------------------------


def test_a_stream_is_server_sent_events_and_is_closed_once(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        answer = await gateway.post("/stream", {"name": "plain"}, key)
        assert (answer.status, answer.body) == (200, b"data: 1\n\ndata: 2\n\n")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert toy.closed == 1

    _play(play, scene)


def test_a_refusal_comes_before_any_byte(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        answer = await gateway.post("/stream", {"name": "refused"}, key)
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (429, "queue_full", "7")

    _play(play, scene)


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("fails", "deadline_exceeded"),
        pytest.param("breaks", "internal", marks=pytest.mark.provokes_internal_error),
    ],
)
def test_after_the_first_byte_a_failure_is_an_event(
    play: Play, how: str, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        answer = await gateway.post("/stream", {"name": how}, key)
        first, error = answer.body.split(b"\n\n")[:2]
        assert (answer.status, first) == (200, b"data: 1")
        name, data = error.split(b"\n")
        assert (name, json.loads(data[6:])["error"]["code"]) == (b"event: error", code)
        assert WORDS.encode() not in answer.body
        assert (toy.closed, WORDS in caplog.text) == (1, False)
        caplog.clear()

    _play(play, scene)


def test_who_leaves_a_stream_ends_it(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        asking = asyncio.ensure_future(gateway.post("/stream", {"name": "waits"}, key))
        await toy.reading.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: toy.closed)

    _play(play, scene)


def test_a_stream_takes_a_place_among_its_keys_parallel_requests_until_its_end(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        asking = asyncio.ensure_future(gateway.post("/stream", {"name": "waits"}, key))
        await toy.reading.wait()
        answer = await gateway.get("/toy", key)
        assert (answer.status, answer.code) == (429, "rate_limited")
        toy.gate.set()
        assert (await asking).status == 200
        assert (await gateway.get("/toy", key)).status == 200

    _play(play, scene, parallel=1)


def test_a_stream_that_is_cut_off_by_the_end_of_the_process_says_so(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        asking = asyncio.ensure_future(gateway.post("/stream", {"name": "waits"}, key))
        await toy.reading.wait()
        await gateway.house.serving.stop(0.05)
        answer = await asking
        assert json.loads(answer.body.split(b"\n")[3][6:])["error"]["code"] == "draining"

    _play(play, scene)


def test_the_document_tells_of_mounted_routes(play: Play) -> None:
    async def scene(gateway: Locked, toy: Toy, key: str) -> None:
        told = json.loads((await gateway.get("/openapi.json")).body)
        making = told["paths"]["/toy"]["post"]
        assert making["summary"] == "Make"
        assert making["responses"]["201"]["content"]["application/json"]["schema"]["$ref"].endswith(
            "/apps.Wish"
        )
        assert told["components"]["schemas"]["apps.Wish"]["additionalProperties"] is False
        assert "text/event-stream" in told["paths"]["/stream"]["post"]["responses"]["200"]["content"]
        assert [one["name"] for one in told["paths"]["/toy/{job_id}"]["get"]["parameters"]] == ["job_id"]

    _play(play, scene)
