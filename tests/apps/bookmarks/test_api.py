"""`/v1/bookmarks` over real HTTP: keys, addresses, states, lists, on both stores."""

import asyncio
from typing import Any

import httpx
from apps.bookmarks.stage import DESCRIPTION, Shop, a_shop, a_site, answer, simulated, until
from server.http.front_stage import Play

from headgate.core.access import AccessTerms
from headgate.machine.ids import random_id
from headgate.runner.access_keys import AccessKeys

MISSING = "bm_000000000000nobodys"


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_a_saved_page_is_described(play: Play, served_on: str) -> None:
    async def scene() -> None:
        async with a_site() as site, a_shop(database=served_on) as shop:
            response = await shop.save(
                site.url("/Page"), tags=["mine"], source_hint="feed", created_from="web"
            )
            first = response.json()
            assert (response.status_code, first["url"]) == (201, site.url("/Page"))
            assert response.headers["location"] == f"/v1/bookmarks/{first['id']}"
            done = await shop.settled(first["id"])
            assert {name: done[name] for name in ("title", "summary", "category", "language")} == {
                name: DESCRIPTION[name] for name in ("title", "summary", "category", "language")
            }
            assert done["tags"] == ["mine", "water", "gates"]
            assert (done["status"], done["llm_status"], done["can_retry"]) == ("done", "done", False)
            assert done["attempts"] == 1
            assert (done["source_hint"], done["created_from"]) == ("feed", "web")
            assert (site.asked, shop.provider.calls) == (["/Page"], 1)

    play(scene)


def test_it_works_with_no_settings_but_its_name(play: Play) -> None:
    """The simulated model is there without settings, and answers in the contract's shape."""

    async def scene() -> None:
        async with a_site() as site, a_shop(models={}, apps={"bookmarks": {"allow_private": True}}) as shop:
            done = await shop.saved(site.url())
            assert (done["status"], done["error_message"], done["language"]) == ("done", None, "en")
            assert done["title"].startswith("Simulated title: Address: http://")

    play(scene)


def test_a_page_that_is_too_large_has_failed_for_good(play: Play) -> None:
    """It will be as large in two minutes: nothing is gained by trying again."""

    async def scene() -> None:
        bookmarks = {"model": "m", "allow_private": True, "page_bytes": 2000}
        async with a_site(large=answer(b"x" * 2001)) as site, a_shop(apps={"bookmarks": bookmarks}) as shop:
            failed = await shop.saved(site.url("/large"))
            assert (failed["status"], failed["attempts"]) == ("failed", 1)
            assert "more than 2000 bytes" in failed["error_message"]

    play(scene)


def test_a_key_is_required(play: Play) -> None:
    async def scene() -> None:
        async with a_shop(work=False) as shop:
            response = await shop.http.post("/v1/bookmarks", json={"url": "https://a.example/"})
            assert error(response) == (400, "invalid_request")
            assert response.json()["error"]["param"] == "Idempotency-Key"
            assert (await shop.list())["data"] == []

    play(scene)


def test_the_same_key_gives_the_same_bookmark_and_says_so(play: Play, served_on: str) -> None:
    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            first = await shop.save("https://a.example/x", key="click")
            again = await shop.save("https://a.example/x", key="click")
            assert (first.status_code, again.status_code) == (201, 201)
            assert first.json()["id"] == again.json()["id"]
            assert again.headers["idempotent-replayed"] == "true"
            assert "idempotent-replayed" not in first.headers
            other = await shop.save("https://a.example/y", key="click")
            assert error(other) == (409, "idempotency_key_mismatch")

    play(scene)


def test_the_key_of_an_address_that_was_saved_before_is_kept_too(play: Play, served_on: str) -> None:
    """Its first answer is 200, and it names that request as a key whose first answer is 201 does."""

    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            first = await shop.save("https://a.example/x", key="one")
            known = await shop.save("https://a.example/x", key="two")
            again = await shop.save("https://a.example/x", key="two")
            other = await shop.save("https://a.example/y", key="two")
            assert [one.status_code for one in (first, known, again, other)] == [201, 200, 200, 409]
            assert error(other) == (409, "idempotency_key_mismatch")
            assert "idempotent-replayed" not in known.headers
            assert again.headers["idempotent-replayed"] == "true"
            assert {one.json()["id"] for one in (known, again)} == {first.json()["id"]}
            assert len((await shop.list())["data"]) == 1
            await shop.http.delete(f"/v1/bookmarks/{first.json()['id']}")
            assert error(await shop.save("https://a.example/x", key="two")) == (409, "state_conflict")

    play(scene)


def test_many_at_once_under_one_key_for_a_saved_address_all_get_it(play: Play, served_on: str) -> None:
    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            await shop.save("https://a.example/")
            answers = await asyncio.gather(*(shop.save("https://a.example/", key="k") for _ in range(20)))
            assert [one.status_code for one in answers] == [200] * 20
            assert sum("idempotent-replayed" in one.headers for one in answers) == 19
            others = await asyncio.gather(
                *(shop.save(f"https://a.example/{number}", key="k") for number in range(5))
            )
            assert {error(one) for one in others} == {(409, "idempotency_key_mismatch")}

    play(scene)


def test_a_key_belongs_to_this_route(play: Play) -> None:
    """A client may use one key for a bookmark and for a job: they are two requests."""

    async def scene() -> None:
        async with a_shop(work=False) as shop:
            key = {"idempotency-key": "click"}
            body = {"task": "chat", "input": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}}
            assert (await shop.http.post("/v1/jobs", json=body, headers=key)).status_code == 202
            assert (await shop.save("https://a.example/", key="click")).status_code == 201

    play(scene)


def test_the_same_address_again_is_the_same_bookmark_however_it_is_spelled(
    play: Play, served_on: str
) -> None:
    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            first = await shop.save("HTTPS://Bücher.Example:443/Pfad/Ä?q=1#top")
            again = await shop.save("https://xn--bcher-kva.example/Pfad/%c3%84?q=1")
            assert (first.status_code, again.status_code) == (201, 200)
            assert again.json()["id"] == first.json()["id"]
            other = await shop.save("https://xn--bcher-kva.example/pfad/%c3%84?q=1")
            assert other.status_code == 201, "the path's capitals mean something"

    play(scene)


def test_many_at_once_are_one(play: Play, served_on: str) -> None:
    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            answers = await asyncio.gather(*(shop.save("https://a.example/") for _ in range(20)))
            assert sorted(one.status_code for one in answers) == [200] * 19 + [201]
            assert len({one.json()["id"] for one in answers}) == 1
            assert len(await shop.gateway.jobs.list()) == 1

    play(scene)


def test_a_failed_page_can_be_tried_again(play: Play, served_on: str) -> None:
    async def scene() -> None:
        async with a_site(gone=answer(b"", status=404)) as site, a_shop(database=served_on) as shop:
            failed = await shop.saved(site.url("/gone"))
            assert (failed["status"], failed["llm_status"], failed["can_retry"]) == ("failed", "failed", True)
            assert "the site answered 404" in failed["error_message"]
            site.pages.clear()
            again = await shop.http.post(f"/v1/bookmarks/{failed['id']}/reprocess")
            assert (again.status_code, again.json()["id"]) == (202, failed["id"])
            done = await shop.settled(failed["id"])
            assert (done["status"], done["job_id"]) == ("done", failed["job_id"])
            assert done["error_message"] is None

    play(scene)


def test_what_is_done_is_described_anew_and_keeps_its_old_words_until_then(play: Play) -> None:
    async def scene() -> None:
        async with a_site() as site, a_shop() as shop:
            done = await shop.saved(site.url())
            again = (await shop.http.post(f"/v1/bookmarks/{done['id']}/reprocess")).json()
            assert again["summary"] == done["summary"]
            assert again["job_id"] != done["job_id"]
            assert (await shop.settled(done["id"]))["status"] == "done"
            assert shop.provider.calls == 2

    play(scene)


def test_reprocessing_what_is_at_work_changes_nothing(play: Play) -> None:
    async def scene() -> None:
        async with a_shop(work=False) as shop:
            saved = (await shop.save("https://a.example/")).json()
            again = await shop.http.post(f"/v1/bookmarks/{saved['id']}/reprocess")
            assert (again.status_code, again.json()["job_id"]) == (202, saved["job_id"])
            assert len(await shop.gateway.jobs.list()) == 1

    play(scene)


def test_a_held_bookmark_says_why_it_cannot_be_processed_and_a_raised_ceiling_releases_it(
    play: Play, served_on: str
) -> None:
    """Reprocess answered 202 and did nothing; after a restart with a higher ceiling it still waited for midnight."""

    def shop_with(daily_usd: float) -> Any:
        bookmarks = {"model": "m", "allow_private": True, "daily_usd": daily_usd, "call_usd": 0.4}
        return a_shop(database=served_on, apps={"bookmarks": bookmarks})

    async def scene() -> None:
        async with a_site() as site:
            async with shop_with(0.4) as shop:
                await shop.saved(site.url("/first"))
                saved = (await shop.save(site.url("/held"))).json()

                async def held() -> dict[str, Any] | None:
                    found = await shop.get(saved["id"])
                    return found if found["waiting_until"] else None

                assert "daily ceiling of $0.40 is reached" in (await until(held))["error_message"]
                again = await shop.http.post(f"/v1/bookmarks/{saved['id']}/reprocess")
                assert error(again) == (409, "state_conflict")
                assert "the daily ceiling of $0.40 is reached; it goes on at" in again.text
            async with shop_with(2.0) as shop:
                assert (await shop.settled(saved["id"]))["status"] == "done"

    play(scene)


def test_a_deleted_bookmark_is_gone_and_can_be_saved_again(play: Play, served_on: str) -> None:
    async def scene() -> None:
        async with a_site() as site, a_shop(database=served_on) as shop:
            done = await shop.saved(site.url(), key="click")
            deleted = await shop.http.delete(f"/v1/bookmarks/{done['id']}")
            assert deleted.json() == {"id": done["id"], "object": "bookmark", "deleted": True}
            assert error(await shop.http.get(f"/v1/bookmarks/{done['id']}")) == (404, "not_found")
            assert error(await shop.save(site.url(), key="click")) == (409, "state_conflict")
            anew = await shop.saved(site.url())
            assert anew["id"] != done["id"]

    play(scene)


def test_deleting_stops_the_job(play: Play) -> None:
    """A job that ended after the deletion would bring the bookmark back."""

    async def scene() -> None:
        async with a_site() as site, a_shop(models=simulated(latency_s=60)) as shop:
            saved = (await shop.save(site.url())).json()

            async def is_called() -> bool | None:
                return shop.provider.calls > 0 or None

            await until(is_called)
            assert (await shop.get(saved["id"]))["llm_status"] == "processing"
            assert (await shop.http.delete(f"/v1/bookmarks/{saved['id']}")).status_code == 200
            assert (await shop.gateway.jobs.get(saved["job_id"])).state == "cancelled"
            assert (await shop.list())["data"] == []
            assert shop.provider.cancelled == 1

    play(scene)


def test_a_deleted_failure_is_no_dead_letter_any_more(play: Play) -> None:
    async def scene() -> None:
        async with a_site(gone=answer(b"", status=410)) as site, a_shop() as shop:
            failed = await shop.saved(site.url("/gone"))
            await shop.http.delete(f"/v1/bookmarks/{failed['id']}")
            assert await shop.gateway.dead_letters.list() == []

    play(scene)


def test_a_list_is_searched_filtered_and_paged(play: Play, served_on: str) -> None:
    async def scene() -> None:
        pages = {"bad": answer(b"", status=404)}
        async with a_site(**pages) as site, a_shop(database=served_on) as shop:
            for number in range(5):
                await shop.saved(site.url(f"/p{number}"), title=f"Title {number}", tags=[f"t{number % 2}"])
            await shop.saved(site.url("/bad"), title="Broken 100%_")

            async def titles(**query: Any) -> list[str]:
                return [one["title"] for one in (await shop.list(**query))["data"]]

            assert await titles() == ["Broken 100%_", *(f"Title {number}" for number in (4, 3, 2, 1, 0))]
            assert await titles(q="tITLE 3") == ["Title 3"]
            assert await titles(q="100%_") == ["Broken 100%_"]
            assert len(await titles(q="fields below")) == 5, "the summary is searched too"
            assert await titles(status="failed") == ["Broken 100%_"]
            assert await titles(tag="t1") == ["Title 3", "Title 1"]
            assert len(await titles(category="tech", status="done")) == 5
            assert await titles(category="news") == []

            seen, after = [], None
            while True:
                page = await shop.list(tag="t0", limit=1, **({"after": after} if after else {}))
                seen += [one["title"] for one in page["data"]]
                after = page["last_id"]
                if not page["has_more"]:
                    break
            assert seen == ["Title 4", "Title 2", "Title 0"]
            first = await shop.list(limit=6)
            assert (len(first["data"]), first["has_more"]) == (6, False)

    play(scene)


def test_wrong_requests_are_told_what_is_wrong(play: Play) -> None:
    async def scene() -> None:
        async with a_shop(work=False) as shop:
            for body in (
                {"url": 7},
                {},
                {"url": "https://a.example/", "nonsense": 1},
                {"url": "https://a.example/", "tags": "one"},
                {"url": "ftp://a.example/"},
                {"url": "https://user:secret@a.example/"},
                {"url": ""},
            ):
                response = await shop.http.post("/v1/bookmarks", json=body, headers={"idempotency-key": "k"})
                assert error(response) == (400, "invalid_request"), body
            for query in ("limit=0", "limit=101", "after=x", "after=%00", "status=saving", "nonsense=1"):
                assert error(await shop.http.get(f"/v1/bookmarks?{query}")) == (400, "invalid_request"), query
            for wrong in (MISSING, "x", "%00", "bm_" + "0" * 300):
                assert error(await shop.http.get(f"/v1/bookmarks/{wrong}")) == (404, "not_found")
                assert error(await shop.http.delete(f"/v1/bookmarks/{wrong}")) == (404, "not_found")
                again = await shop.http.post(f"/v1/bookmarks/{wrong}/reprocess")
                assert error(again) == (404, "not_found")
            assert (await shop.http.put("/v1/bookmarks", json={})).status_code == 405

    play(scene)


def test_hostile_words_are_kept_as_words(play: Play, served_on: str) -> None:
    """Half a character, a NUL, an escape sequence: no store chokes on it, no screen obeys it."""

    async def scene() -> None:
        async with a_shop(work=False, database=served_on) as shop:
            hostile = "<img src=x onerror=alert(1)>\u0000\u001b[2J\n\u200dend"
            response = await shop.save("https://a.example/", title=hostile, tags=["\u0000", " a\tb "])
            assert response.status_code == 201
            assert response.json()["title"] == "<img src=x onerror=alert(1)>[2J \u200dend"
            assert response.json()["tags"] == ["a b"]
            half = b'{"url": "https://a.example/h", "title": "\\ud800"}'
            headers = {"idempotency-key": "k", "content-type": "application/json"}
            answered = await shop.http.post("/v1/bookmarks", content=half, headers=headers)
            assert answered.status_code in {201, 400}
            assert (await shop.list(q="onerror\u0000"))["data"] != []

    play(scene)


def test_tenants_do_not_meet(play: Play) -> None:
    """A foreign id looks like an unknown one, and two tenants may save one address."""

    async def scene() -> None:
        async with a_shop(work=False) as shop:
            ours = (await shop.save("https://a.example/")).json()
            tenants = await _keys(shop, "one", "two")
            saved = {}
            for tenant, bearer in tenants.items():
                headers = {**bearer, "idempotency-key": "k"}
                response = await shop.http.post(
                    "/v1/bookmarks", json={"url": "https://a.example/"}, headers=headers
                )
                assert response.status_code == 201
                saved[tenant] = response.json()["id"]
            for foreign in (ours["id"], saved["two"]):
                path = f"/v1/bookmarks/{foreign}"
                assert error(await shop.http.get(path, headers=tenants["one"])) == (404, "not_found")
                assert error(await shop.http.delete(path, headers=tenants["one"])) == (404, "not_found")
                again = await shop.http.post(f"{path}/reprocess", headers=tenants["one"])
                assert error(again) == (404, "not_found")
            listed = (await shop.http.get("/v1/bookmarks", headers=tenants["one"])).json()
            assert [one["id"] for one in listed["data"]] == [saved["one"]]
            assert (await shop.http.get("/v1/bookmarks")).status_code == 401
            assert (await shop.http.get("/bookmarks")).status_code == 200, "the page holds nobody's data"

    play(scene)


async def _keys(shop: Shop, *tenants: str) -> dict[str, dict[str, str]]:
    """A header for each tenant; the gateway notices new keys after a moment, all at once."""
    keys = AccessKeys(shop.gateway.durable, random_id)
    headers = {}
    for tenant in tenants:
        issued = await keys.create(AccessTerms(name=tenant, tenant=tenant))
        headers[tenant] = {"authorization": f"Bearer {issued.text}"}

    async def in_force() -> bool | None:
        asked = [await shop.http.get("/v1/bookmarks", headers=shown) for shown in ({}, *headers.values())]
        return [one.status_code for one in asked] == [401, *(200 for _ in tenants)] or None

    await until(in_force)
    return headers
