"""Every error on every route that can meet it: the documented status, OpenAI's body, and what a client needs to go on.

The routes are those that are really served; one that is not in `error_matrix.py` fails here, and so does an error
that no route meets.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import pytest
from conftest import Figure
from server.error_matrix import MATRIX, Row
from server.http.front_stage import Answer, Play
from server.locked_stage import BODY, Locked, locked, path_of
from server.upstreams import until

import headgate
from headgate import Context, wiring
from headgate.core.access import Role, may
from headgate.core.record import RecordWrite
from headgate.server.errors import STATUS_BY_CODE
from headgate.server.http import HttpLimits
from headgate.server.inference.route import ROUTES

LIMIT_BYTES: Final = 4096
QUOTA_BYTES: Final = 100_000
NOBODYS: Final = {
    "job_id": "job_000000000000nobodys",
    "batch_id": "batch_000000000000nobodys",
    "file_id": "file-000000000000nobodys",
    "bookmark_id": "bookmark_000000000000nobodys",
}
_KEYS: Final = count()


@headgate.task("fragile", model=None)
async def fragile(ctx: Context, given: Any) -> None:
    raise headgate.Reject("as asked")


@dataclass(frozen=True)
class Scene:
    """One route on a served gateway, a key that may use it, a pending job, batch and file of its tenant."""

    gateway: Locked
    name: str
    row: Row
    key: str
    ids: Mapping[str, str]

    async def ask(self, *headers: str, key: str | None = None, **changes: Any) -> Answer:
        """Ask rightly, but for the changes: `body`, `query`, `ids`, `method`, `with_key`."""
        method, path = path_of(self.name, **changes.get("ids", self.ids))
        query = f"?{changes['query']}" if "query" in changes else ""
        bearer = [f"x-api-key: {key or self.key}"]
        body = self._filled(changes.get("body", self.row.body))
        key_wanted = self.row.needs_key and not any(one.startswith("Idempotency-Key") for one in headers)
        once = [f"Idempotency-Key: {next(_KEYS)}"] if key_wanted and changes.get("with_key", True) else []
        sent = (*bearer, *self.row.headers, *headers, *once)
        return await self.gateway.ask(changes.get("method", method), path + query, body, *sent)

    def _filled(self, body: Any) -> Any:
        if isinstance(body, dict):
            return json.loads(json.dumps(body).replace("{file_id}", self.ids["file_id"]))
        return body


Provoke = Callable[[Scene], Awaitable[Answer]]


@dataclass(frozen=True)
class Trouble:
    """An error: which routes can meet it, and how to bring it about."""

    code: str
    meets: Callable[[str, Row], bool]
    provoke: Provoke
    status: int | None = None
    """Where it is not the usual one of its code."""
    param: Callable[[Row], str | None] = lambda row: None
    settings: dict[str, Any] | None = None


async def _without_key(scene: Scene) -> Answer:
    method, path = path_of(scene.name, **scene.ids)
    return await scene.gateway.ask(method, path, scene.row.body)


async def _wrong_role(scene: Scene) -> Answer:
    role = next(role for role in Role if not may(role, _action(scene.row)))
    return await scene.ask(key=await scene.gateway.key(role=role))


async def _limited(scene: Scene) -> Answer:
    key = await scene.gateway.key(role=Role.OPERATE, requests_per_minute=1)
    await scene.gateway.get("/v1/models", f"x-api-key: {key}")
    return await scene.ask(key=key)


async def _model_not_allowed(scene: Scene) -> Answer:
    return await scene.ask(key=await scene.gateway.key(role=Role.OPERATE, models=("other",)))


async def _foreign(scene: Scene) -> Answer:
    """Another tenant's looks exactly as if it were not there."""
    foreign = await scene.ask(key=await scene.gateway.key(role=Role.OPERATE, tenant="other"))
    unknown = await scene.ask(ids=NOBODYS)
    expected = unknown.body
    for kind, nobodys in NOBODYS.items():
        expected = expected.replace(nobodys.encode(), scene.ids[kind].encode())
    assert foreign.body == expected
    return unknown


async def _wrong_method(scene: Scene) -> Answer:
    answer = await scene.ask(method="PATCH", body=None)
    path = scene.name.split()[1]
    methods = {name.split()[0] for name in MATRIX if name.split()[1] == path}
    assert {*answer.headers["allow"].split(", ")} - {"HEAD"} == methods
    return answer


async def _wrong_field(scene: Scene) -> Answer:
    return await scene.ask(body={**scene.row.body, **scene.row.wrong})


async def _mismatch(scene: Scene) -> Answer:
    once = "Idempotency-Key: one-of-a-kind"
    first = await scene.ask(once)
    assert first.status in {200, 201, 202}, first.body
    other = await scene.ask(once, body={**scene.row.body, **scene.row.other})
    assert "idempotent-replayed" not in other.headers
    return other


async def _stopped(scene: Scene) -> Answer:
    scene.gateway.house.serving._closing.set()
    try:
        return await scene.ask()
    finally:
        scene.gateway.house.serving._closing.clear()


async def _unstored(scene: Scene) -> Answer:
    await scene.gateway.house.gateway.durable.store.aclose()
    return await scene.ask(*(["Idempotency-Key: k"] if scene.row.keyed else []))


async def _over_quota(scene: Scene) -> Answer:
    """The tenant stores as much as it may, in one record."""
    full = RecordWrite(collection="fill", id="1", body=b'"' + b"x" * (QUOTA_BYTES - 2) + b'"')
    await scene.gateway.house.gateway.durable.store.put_records("local", [full], now=0.0)
    answer = await scene.ask(*(["Idempotency-Key: k"] if scene.row.asks else []))
    assert f"of at most {QUOTA_BYTES:,}: delete files" in answer.body.decode()
    return answer


async def _crowded(scene: Scene) -> Answer:
    """All slots of the model are taken, and all places in its line."""
    body = {**scene.row.body, "model": "stuck"}
    waiting = [asyncio.ensure_future(scene.ask(body=body)) for _ in range(2)]
    try:
        await until(lambda: scene.gateway.house.gateway.status().rt_queue == 1)
        return await scene.ask(body=body)
    finally:
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: scene.gateway.house.all_free)


async def _in_progress(scene: Scene) -> Answer:
    """The first with this key still waits for its answer, longer than the second has time."""
    body, once = {**scene.row.body, "model": "stuck"}, "Idempotency-Key: patience"
    first = asyncio.ensure_future(scene.ask(once, body=body))
    try:
        await until(lambda: not scene.gateway.house.all_free)
        return await scene.ask(once, "X-Headgate-Timeout: 0.1", body=body)
    finally:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: scene.gateway.house.all_free)


def _with(*headers: str, **changes: Any) -> Provoke:
    return lambda scene: scene.ask(*headers, **changes)


def _of(model: str, *headers: str) -> Provoke:
    """Ask this model instead."""
    return lambda scene: scene.ask(*headers, body={**scene.row.body, "model": model})


def _action(row: Row) -> Any:
    assert row.action is not None
    return row.action


# ---- Which errors there are ---------------------------------------------------------------------------------


def _strict(_name: str, row: Row) -> bool:
    return isinstance(row.body, dict) and not row.passes


TROUBLES: Final = {
    "no key": Trouble("unauthorized", lambda _, row: row.action is not None, _without_key),
    "wrong role": Trouble(
        "not_allowed",
        lambda _, row: row.action is not None and not all(may(role, row.action) for role in Role),
        _wrong_role,
    ),
    "too many requests": Trouble("rate_limited", lambda _, row: row.action is not None, _limited),
    "model not for this key": Trouble("model_not_allowed", lambda _, row: row.model, _model_not_allowed),
    "unknown model": Trouble(
        "not_found",
        lambda name, row: row.asks or name == "POST /v1/jobs",
        _of("nobody"),
        param=lambda _: "model",
    ),
    "unknown or another's": Trouble(
        "not_found", lambda name, _: "_id}" in name, _foreign, param=lambda _: "id"
    ),
    "wrong method": Trouble("method_not_allowed", lambda *_: True, _wrong_method),
    "no JSON": Trouble("invalid_request", lambda _, row: row.body is not None, _with(body=b"{")),
    "no object": Trouble("invalid_request", lambda _, row: row.body is not None, _with(body=b"7")),
    "wrong field": Trouble(
        "invalid_request",
        lambda _, row: bool(row.wrong),
        _wrong_field,
        param=lambda row: next(iter(row.wrong)),
    ),
    "unknown field": Trouble(
        "invalid_request",
        _strict,
        lambda scene: scene.ask(body={**scene.row.body, "surprise": 1}),
        param=lambda _: "surprise",
    ),
    "wrong query": Trouble(
        "invalid_request",
        lambda _, row: row.query is not None,
        lambda scene: scene.ask(query=scene.row.query),
        param=lambda row: str(row.query).partition("=")[0],
    ),
    "unknown query": Trouble(
        "invalid_request", lambda _, row: row.stored, _with(query="surprise=1"), param=lambda _: "surprise"
    ),
    "repeated query": Trouble(
        "invalid_request", lambda _, row: row.stored, _with(query="limit=1&limit=1"), param=lambda _: "limit"
    ),
    "wrong idempotency key": Trouble(
        "invalid_request",
        lambda _, row: row.keyed,
        _with(f"Idempotency-Key: {'x' * 256}"),
        param=lambda _: "idempotency_key",
    ),
    "no idempotency key": Trouble(
        "invalid_request",
        lambda _, row: row.needs_key,
        _with(with_key=False),
        param=lambda _: "Idempotency-Key",
    ),
    "useless idempotency key": Trouble(
        "invalid_request",
        lambda _, row: row.refuses_key,
        _with("Idempotency-Key: k"),
        param=lambda _: "Idempotency-Key",
    ),
    "too large": Trouble(
        "payload_too_large", lambda _, row: row.body is not None, _with(body=b" " * (LIMIT_BYTES + 1))
    ),
    "compressed": Trouble(
        "unsupported_media_type", lambda _, row: row.body is not None, _with("Content-Encoding: gzip")
    ),
    "key of another request": Trouble(
        "idempotency_key_mismatch",
        lambda _, row: bool(row.other),
        _mismatch,
        param=lambda _: "idempotency_key",
    ),
    "key of another request, by setting": Trouble(
        "idempotency_key_mismatch",
        lambda _, row: bool(row.other),
        _mismatch,
        status=422,
        param=lambda _: "idempotency_key",
        settings={"idempotency": {"mismatch_status": 422}},
    ),
    "key in use": Trouble("idempotency_in_progress", lambda _, row: row.asks, _in_progress),
    "wrong state": Trouble("state_conflict", lambda _, row: row.conflicts, _with()),
    "full line": Trouble("queue_full", lambda _, row: row.asks, _crowded),
    "full backlog": Trouble(
        "queue_full", lambda _, row: row.backlog, _with(), settings={"jobs": {"max_pending": 2}}
    ),
    "provider throttles": Trouble(
        "upstream_throttled", lambda _, row: row.asks, _of("limited", "X-Headgate-Timeout: 0.5")
    ),
    "provider refuses": Trouble("invalid_request", lambda _, row: row.asks, _of("simulated/rejecting")),
    "provider down": Trouble("upstream_unavailable", lambda _, row: row.asks, _of("simulated/down")),
    "wrong provider key": Trouble(
        "upstream_misconfigured", lambda _, row: row.asks, _of("simulated/misconfigured")
    ),
    "useless answers": Trouble(
        "unprocessable", lambda name, row: row.asks and "embeddings" not in name, _of("simulated/blank")
    ),
    "time is up": Trouble(
        "deadline_exceeded", lambda _, row: row.asks, _of("stuck", "X-Headgate-Timeout: 0.1")
    ),
    "going away": Trouble("draining", lambda _, row: row.works, _stopped),
    "quota used up": Trouble(
        "quota_exceeded",
        lambda name, row: row.asks or row.backlog or name == "POST /v1/files",
        _over_quota,
        settings={"bounds": {"tenant_bytes": QUOTA_BYTES}},
    ),
    "database away": Trouble("store_unavailable", lambda _, row: row.stored or row.keyed, _unstored),
}
ELSEWHERE: Final = {"internal", "budget_exhausted"}
"""What no request can bring about: a mistake of ours, and what only a job's later attempt meets."""
MODELS: Final = {
    "stuck": {"upstreams": [{"provider": "simulated", "outcome": "stall", "slots": 1, "depth": 1}]},
    "limited": {
        "upstreams": [{"provider": "simulated", "script": [{"status": 429, "retry_after_s": 30}] * 9}],
        "retry": {"max_attempts": 1},
    },
    "simulated/*": {"upstreams": [{"provider": "simulated"}], "retry": {"max_attempts": 1}},
}

APPS: Final[dict[str, Any]] = {name: {} for name in wiring.APPS}
"""All there are, mounted."""


@asynccontextmanager
async def _stage(settings: dict[str, Any]) -> AsyncIterator[tuple[Locked, str, dict[str, str]]]:
    """A gateway, an operator's key, a job and a batch that wait, and the batch's file."""
    limits = HttpLimits(body_bytes=LIMIT_BYTES)
    async with locked(models=MODELS, apps=APPS, tasks=[fragile], limits=limits, **settings) as gateway:
        key = await gateway.key(role=Role.OPERATE)
        inside = gateway.house.gateway
        job = await inside.jobs.submit("chat", BODY)
        file = await inside.files.create(b"{}")
        batch = await inside.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions")
        saved = await gateway.post(
            "/v1/bookmarks", {"url": "https://example.org"}, f"x-api-key: {key}", "Idempotency-Key: first"
        )
        ids = {"job_id": job.id, "file_id": file.id, "batch_id": batch.batch.id}
        yield gateway, key, {**ids, "bookmark_id": json.loads(saved.body).get("id", "none")}


def _check(answer: Answer, trouble: Trouble, row: Row, name: str) -> None:
    told = (name, answer.status, answer.body)
    status = trouble.status or STATUS_BY_CODE[trouble.code]
    assert (answer.status, answer.code) == (status, trouble.code), told
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}, told
    assert error["message"], told
    if trouble.code == "store_unavailable":
        assert error["message"] == "the database does not answer; try again in a moment", told
    assert error["type"].endswith("_error"), told
    assert error["param"] == trouble.param(row), told
    assert answer.headers["content-type"] == "application/json", told
    assert answer.headers["x-request-id"].startswith("req_"), told
    # What throttled to the end was retried here already.
    final = trouble.code == "upstream_throttled"
    if status in {429, 503} or trouble.code == "idempotency_in_progress":
        assert 1 <= int(answer.headers["retry-after"]) <= 60, told
        assert 1000 <= int(answer.headers["retry-after-ms"]) <= 60_000, told
        assert ("x-should-retry" in answer.headers) is final, told
    else:
        final = True
        assert "retry-after" not in answer.headers, told
    if final:
        assert answer.headers["x-should-retry"] == "false", told


@pytest.mark.parametrize("what", TROUBLES)
def test_every_route_tells_this_error_as_documented(
    play: Play, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    trouble = TROUBLES[what]
    met = {name: row for name, row in MATRIX.items() if trouble.meets(name, row)}

    async def scene() -> None:
        async with _stage(trouble.settings or {}) as (gateway, key, ids):
            for name, row in met.items():
                answer = await trouble.provoke(Scene(gateway, name, row, key, ids))
                _check(answer, trouble, row, name)
        if trouble.code == "upstream_misconfigured":
            caplog.clear()  # The operator is told loudly, and should be.

    assert met, "an error that no route meets needs no row"
    play(scene)


def test_every_route_that_is_served_is_in_the_matrix(play: Play, figure: Figure) -> None:
    """Whoever adds a route says in one line of `error_matrix.py` what it takes; its errors are asked for from then on."""

    async def scene() -> None:
        async with locked(apps=APPS) as gateway:
            routes: Any = gateway.house.serving.routes
            # Pages are for people and have errors of their own: see dashboard/test_door.py.
            rest = {
                f"{method} {route.path}"
                for route in routes
                if route.include_in_schema
                for method in route.methods - {"HEAD"}
            }
            assert rest | {f"POST {path}" for path in ROUTES} == set(MATRIX)

    play(scene)
    pairs = sum(trouble.meets(name, row) for trouble in TROUBLES.values() for name, row in MATRIX.items())
    figure("errors", f"{len(TROUBLES)} kinds on {len(MATRIX)} routes: {pairs} answers, each as documented")


def test_every_code_there_is_has_its_trouble() -> None:
    assert set(STATUS_BY_CODE) - {trouble.code for trouble in TROUBLES.values()} == ELSEWHERE
