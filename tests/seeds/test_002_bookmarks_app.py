"""The bookmarks design as an application: its route, its states, its retry button, its offline queue. Row by row, over HTTP.

Its retry rules, key table, queue, dead letters and metrics are in the other files of this name.
"""

import asyncio
import hashlib
import uuid
from pathlib import Path
from typing import Any

import pytest
from apps.bookmarks.stage import ANSWER, Shop, a_shop, a_site, answer, simulated, until
from server.conftest import play
from server.http.front_stage import Play

from headgate.apps.bookmarks.processing import RETRY
from headgate.client import AsyncClient, Outbox
from headgate.core import events

__all__ = ["play"]
URL = "https://example.org/Article"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def served_on(request: pytest.FixtureRequest) -> str:
    return "sqlite" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


async def keys_of(shop: Shop) -> list[dict[str, Any]]:
    """The table itself, past every port."""
    store: Any = shop.gateway.durable.store
    columns = "key, endpoint, created_at, expires_at"
    if store.name.startswith("sqlite"):
        rows = await store._read(lambda db: db.execute(f"select {columns} from idempotency_keys").fetchall())
    else:
        rows = await store._database.read(f"select {columns} from headgate.idempotency_keys")
    return [dict(zip(columns.split(", "), tuple(row), strict=True)) for row in rows]


# ---- 2. Idempotency-Key ------------------------------------------------------------------------------------


def test_the_key_is_required_on_post_bookmarks_only(play: Play) -> None:
    """対象API: "POST /v1/bookmarks" のみ必須."""

    async def scene() -> None:
        async with a_shop(work=False) as shop:
            assert (await shop.http.post("/v1/bookmarks", json={"url": URL})).status_code == 400
            saved = (await shop.save(URL)).json()
            assert (await shop.http.post(f"/v1/bookmarks/{saved['id']}/reprocess")).status_code == 202

    play(scene)


@pytest.mark.parametrize(
    "key", [str(uuid.UUID(int=7, version=4)), f"{hashlib.sha256(URL.encode()).hexdigest()[:8]}-1767225600000"]
)
def test_a_key_is_kept_for_72_hours_under_its_route(play: Play, served_on: str, key: str) -> None:
    """保存期限: 72時間; endpoint TEXT NOT NULL. A uuid, or the client's own hash and time."""

    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            await shop.save(URL, key=key)
            (row,) = await keys_of(shop)
            assert (row["key"], row["endpoint"]) == (key, "POST /v1/bookmarks")
            assert row["expires_at"] - row["created_at"] == pytest.approx(72 * 3600)

    play(scene)


def test_the_four_steps_over_http(play: Play, served_on: str) -> None:
    """First: done and recorded. Again: the same answer, nothing done. Other body: 409. Expired: as the first."""

    async def scene() -> None:
        settings = {"database": served_on, "idempotency": {"retention_h": 0.0003}}
        async with a_shop(work=False, **settings) as shop:
            first = await shop.save(URL, key="k")
            again = await shop.save(URL, key="k")
            other = await shop.save(f"{URL}/other", key="k")
            assert [one.status_code for one in (first, again, other)] == [201, 201, 409]
            assert other.json()["error"]["code"] == "idempotency_key_mismatch"
            assert len(await shop.gateway.jobs.list()) == 1

            async def later() -> int | None:
                status = (await shop.save(f"{URL}/other", key="k")).status_code
                return None if status == 409 else status

            assert await until(later) == 201

    play(scene)


def test_the_client_makes_its_key_once_and_keeps_it_through_retries(play: Play) -> None:
    """The design's own client makes a new key for every call, so nothing was ever recognised."""

    async def scene() -> None:
        async with a_shop(work=False) as shop, AsyncClient(shop.served.url) as client:
            with Outbox("outbox.db") as outbox:
                entry = outbox.add_bookmark(URL, source_hint="article", created_from="ios")
                await shop.save(URL, key=entry.key, source_hint="article", created_from="ios")
                # The answer was lost: the outbox sends it again, under the same key.
                assert (await outbox.flush(client)).sent == 1
            listed = (await shop.list())["data"]
            assert [(one["url"], one["source_hint"], one["created_from"]) for one in listed] == [
                (URL, "article", "ios")
            ]
            assert len(await shop.gateway.jobs.list()) == 1

    play(scene)


def test_repeats_are_counted_for_this_route(play: Play) -> None:
    """冪等キー利用率: the metric and its alert look at this endpoint."""

    async def scene() -> None:
        async with a_shop(work=False) as shop:
            used: list[events.KeyUsed] = []
            shop.gateway.listen(
                lambda event: used.append(event) if isinstance(event, events.KeyUsed) else None
            )
            for _ in range(3):
                await shop.save(URL, key="k")
            await shop.save(f"{URL}/other", key="k")
            assert [(one.endpoint, str(one.outcome)) for one in used] == [
                ("POST /v1/bookmarks", outcome) for outcome in ("ran", "replayed", "replayed", "mismatch")
            ]

    play(scene)


# ---- 4. The background queue -------------------------------------------------------------------------------


def test_three_attempts_and_two_to_the_attempt_minutes() -> None:
    """delaySeconds: Math.pow(2, attempt) * 60, max_attempts 3."""
    assert RETRY.max_attempts == 3
    assert [RETRY.backoff_s(attempt, 0.5) for attempt in (1, 2)] == [2**attempt * 60 for attempt in (1, 2)]


def test_the_message_has_what_the_design_gives_it(play: Play) -> None:
    """bookmark_id, attempt, max_attempts, original_request {url, idempotency_key}."""

    async def scene() -> None:
        async with a_site() as site, a_shop() as shop:
            saved = await shop.saved(site.url())
            job = await shop.gateway.jobs.get(saved["job_id"])
            assert (job.task, job.input["url"], job.result) == (
                "bookmark",
                site.url(),
                {"bookmark_id": saved["id"]},
            )
            assert (job.attempts, job.max_attempts) == (1, 3)

    play(scene)


def test_a_failed_bookmark_has_the_fields_of_failed_jobs(play: Play, served_on: str) -> None:
    """id, bookmark_id, job_type, error_message, payload, failed_at, retryable; over HTTP, as an operator reads it."""

    async def scene() -> None:
        async with a_site(gone=answer(b"", status=404)) as site, a_shop(database=served_on) as shop:
            failed = await shop.saved(site.url("/gone"))
            (listed,) = (await shop.http.get("/v1/dead-letters")).json()["data"]
            dead = (await shop.http.get(f"/v1/dead-letters/{failed['job_id']}")).json()
            for one in (listed, dead):
                assert one["metadata"] == {"bookmark_id": failed["id"]}
                assert (one["id"], one["job_type"], one["retryable"]) == (failed["job_id"], "bookmark", False)
                assert one["error_message"] == "rejected: the site answered 404"
                assert one["failed_at"] == one["finished_at"] is not None
            assert dead["input"] == {"url": site.url("/gone")}

    play(scene)


def test_a_key_still_names_its_bookmark_though_every_job_names_another_one(
    play: Play, served_on: str
) -> None:
    """The bookmark's id is made anew for every submission: it is no part of what the key stands for."""

    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            first, again = await shop.save(URL, key="k"), await shop.save(URL, key="k")
            assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
            job = await shop.gateway.jobs.get(again.json()["job_id"])
            assert job.metadata == {"bookmark_id": first.json()["id"]}
            anew = (await shop.http.post(f"/v1/bookmarks/{first.json()['id']}/reprocess")).json()
            job = await shop.gateway.jobs.get(anew["job_id"])
            assert job.metadata == {"bookmark_id": first.json()["id"]}

    play(scene)


# ---- 5. What the user sees ---------------------------------------------------------------------------------


def test_a_record_has_the_fields_of_the_screen(play: Play) -> None:
    """BookmarkUIState: status, canRetry, errorMessage; and llm_status."""

    async def scene() -> None:
        async with a_shop(work=False) as shop:
            saved = (await shop.save(URL)).json()
            assert (saved["status"], saved["can_retry"], saved["error_message"]) == (
                "processing",
                False,
                None,
            )
            assert saved["llm_status"] == "queued"

    play(scene)


def test_the_retry_button_of_a_failed_bookmark_processes_it(play: Play) -> None:
    """api.post(`/v1/bookmarks/${bookmark.id}/reprocess`)."""

    async def scene() -> None:
        script = ["rejected", {"outcome": "ok", "content": ANSWER}]
        async with a_site() as site, a_shop(models=simulated(script=script)) as shop:
            failed = await shop.saved(site.url())
            assert (failed["llm_status"], failed["can_retry"]) == ("failed", True)
            both = await asyncio.gather(
                *(shop.http.post(f"/v1/bookmarks/{failed['id']}/reprocess") for _ in range(2))
            )
            assert {one.status_code for one in both} == {202}
            done = await shop.settled(failed["id"])
            assert (done["status"], shop.provider.calls, site.asked) == ("done", 2, ["/page"])

    play(scene)


def test_a_failed_outcome_is_not_replayed_for_ever(play: Play) -> None:
    """The same URL and the same key after a failure show the bookmark as it is by then."""

    async def scene() -> None:
        script = ["rejected", {"outcome": "ok", "content": ANSWER}]
        async with a_site() as site, a_shop(models=simulated(script=script)) as shop:
            failed = await shop.saved(site.url(), key="k")
            await shop.http.post(f"/v1/bookmarks/{failed['id']}/reprocess")
            await shop.settled(failed["id"])
            again = (await shop.save(site.url(), key="k")).json()
            assert (again["id"], again["status"]) == (failed["id"], "done")

    play(scene)


def test_the_offline_queue_sends_when_the_network_is_back(play: Play) -> None:
    """OfflineQueue.enqueue, processQueue: in order, each under its own key, removed when it was taken."""

    async def scene() -> None:
        with Outbox("outbox.db") as outbox:
            for number in range(3):
                outbox.add_bookmark(f"{URL}/{number}")
            async with AsyncClient("http://127.0.0.1:9") as nobody:
                assert (await outbox.flush(nobody)).waiting == 3
            async with a_shop(work=False) as shop, AsyncClient(shop.served.url) as client:
                assert (await outbox.flush(client)).sent == 3
                assert (await outbox.flush(client)).sent == 0
                listed = (await shop.list())["data"]
                assert [one["url"] for one in listed] == [f"{URL}/{number}" for number in (2, 1, 0)]

    play(scene)
