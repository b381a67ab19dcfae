"""Texts that end a statement, begin one, or are a format: wherever a caller may put a text, on both databases.

Another tenant's rows are there to be found, and none is.
"""

import json
import urllib.parse
from typing import Any, Final

from attacks.tenants import bearer, ended
from conftest import Figure
from server.http.front_stage import Answer, Play
from server.locked_stage import Locked, locked

from headgate.core.access import Role

PAYLOADS: Final = (
    "'",
    '"',
    "' or '1'='1",
    "' or 1=1 --",
    "') or ('1'='1",
    "' or 1=1 /*",
    "'; drop table jobs; --",
    "'; drop schema headgate cascade; --",
    "'; delete from headgate.jobs where '1'='1",
    "' union select value, value, value from secrets --",
    "' union all select id, tenant, task from headgate.jobs --",
    "1; select pg_sleep(9)",
    "' || pg_sleep(9) || '",
    "' and randomblob(1000000000) --",
    "$1",
    ":tenant",
    "?1",
    "@tenant",
    "$$; select 1; $$",
    "E'\\047 or 1=1",
    "\\",
    "\\'; select 1 --",
    "%",
    "_",
    "%27%20or%201=1",
    "%s%s%s%n",
    "%(tenant)s",
    "{0.__class__}",
    "{tenant}",
    "{job.__init__.__globals__}",
    "${data_dir}",
    "{{7*7}}",
    "a\u02bc or 1=1",
    "a\uff07 or 1=1",
    "\u0000' or 1=1",
    "*",
    "a* or b*",
    '"a" near "b"',
    "a -- b",
    "../../headgate.db",
    "b",
    "x" * 255 + "'",
)
SECRET: Final = "the-words-of-another-tenant"
CHAT: Final = {"model": "simulated/instant", "messages": [{"role": "user", "content": "hello"}]}
MODELS: Final = {
    "simulated/*": {"upstreams": [{"provider": "simulated"}]},
    "broken": {"upstreams": [{"provider": "simulated", "outcome": 400}]},
}
APPS: Final[dict[str, Any]] = {"bookmarks": {"model": "simulated/instant"}}


def requests(payload: str) -> list[tuple[str, str, Any, tuple[str, ...]]]:
    """Method, path, body and headers."""
    query = urllib.parse.quote(payload, safe="")
    header = payload.encode("unicode_escape").decode().replace("\\", "") or "x"
    filters = [
        f"/v1/jobs?{name}={query}" for name in ("state", "task", "model", "after", "limit", "tenant", query)
    ]
    filters += [f"/v1/dead-letters?{name}={query}" for name in ("task", "model", "reason", "after", "error")]
    filters += [f"/v1/files?{name}={query}" for name in ("purpose", "after")]
    filters += [f"/v1/batches?after={query}", f"/v1/requests?model={query}", f"/events?model={query}&limit=1"]
    filters += [f"/v1/bookmarks?{name}={query}" for name in ("q", "tag", "category", "after", "status")]
    ids = [
        f"/v1/{kind}/{query}"
        for kind in ("jobs", "dead-letters", "files", "batches", "bookmarks", "requests", "models")
    ]
    job = {"task": "chat", "input": CHAT}
    bodies = [
        {**job, "task": payload},
        {**job, "model": payload},
        {**job, "dedup_key": payload},
        {**job, "metadata": {payload[:60]: payload}},
        {**job, "lane": payload},
        {**job, "input": {**CHAT, "model": payload}},
        {**job, "input": {**CHAT, "user": payload, "metadata": {"x": payload}}},
    ]
    json_type = "Content-Type: application/json"
    return [
        *[("GET", path, None, ()) for path in [*filters, *ids]],
        *[("DELETE", path, None, ()) for path in ids[:5]],
        *[
            ("POST", f"{path}/{verb}", {}, ())
            for path in ids[:1]
            for verb in ("cancel", "replay", "redeliver")
        ],
        *[("POST", "/v1/jobs", body, (json_type,)) for body in bodies],
        ("POST", "/v1/jobs", job, (json_type, f"Idempotency-Key: {header}")),
        ("POST", "/v1/chat/completions", CHAT, (f"Idempotency-Key: {header}",)),
        ("POST", "/v1/chat/completions", {**CHAT, "user": payload}, (f"X-Headgate-Agent: {header}",)),
        ("POST", "/v1/dead-letters/discard", {"task": payload}, (json_type,)),
        ("POST", "/v1/dead-letters/replay", {"model": payload}, (json_type,)),
        ("POST", "/v1/batches", {"input_file_id": payload, "endpoint": "/v1/chat/completions"}, (json_type,)),
    ]


async def rows_of(gateway: Locked, key: str) -> list[str]:
    """What the other tenant has, as it sees it."""
    found = []
    for path in ("/v1/jobs", "/v1/files", "/v1/bookmarks", "/v1/dead-letters"):
        listed = json.loads((await gateway.get(path, bearer(key))).body)["data"]
        found += sorted(row["id"] for row in listed if row.get("task") != "headgate.webhook")
    return found


async def fill(gateway: Locked, key: str) -> None:
    asked = {"task": "chat", "input": CHAT, "metadata": {"note": SECRET}, "dedup_key": SECRET}
    answer = await gateway.post("/v1/jobs", asked, bearer(key))
    assert answer.status == 202, answer.body
    await ended(gateway, key, json.loads(answer.body)["id"])
    bad = {"task": "chat", "input": {**CHAT, "model": "broken", "user": SECRET}}
    await ended(gateway, key, json.loads((await gateway.post("/v1/jobs", bad, bearer(key))).body)["id"])
    saved = await gateway.post(
        "/v1/bookmarks", {"url": f"https://{SECRET}.invalid/"}, bearer(key), "Idempotency-Key: x"
    )
    assert saved.status == 201, saved.body


def test_no_text_is_read_as_a_part_of_a_statement_or_of_a_format(
    play: Play, database: str, figure: Figure, caplog: Any
) -> None:
    answers: list[tuple[str, str, Answer]] = []

    async def scene() -> None:
        async with locked(work=True, database=database, apps=APPS, models=MODELS) as gateway:
            other = await gateway.key(tenant="b")
            await fill(gateway, other)
            before = await rows_of(gateway, other)
            assert len(before) >= 3
            assert SECRET.encode() in (await gateway.get("/v1/bookmarks", bearer(other))).body
            for role in (Role.CALL, Role.OPERATE):
                key = await gateway.key(tenant="a", role=role)
                for payload in PAYLOADS:
                    for method, path, body, headers in requests(payload):
                        answer = await gateway.ask(method, path, body, bearer(key), *headers)
                        answers.append((f"{method} {path[:80]}", payload, answer))
            assert await rows_of(gateway, other) == before
        caplog.clear()

    play(scene)
    assert [(where, payload) for where, payload, answer in answers if answer.status >= 500] == []
    assert [(where, payload) for where, payload, answer in answers if SECRET.encode() in answer.body] == []
    assert sum(answer.status == 200 for _, _, answer in answers) > len(PAYLOADS)
    figure(
        f"payloads of SQL and formats, {database[:8]}", f"{len(answers):,} requests, 0 × 500, 0 foreign rows"
    )
