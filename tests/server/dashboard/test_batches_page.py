"""`/batches`: how far they are, their files, stopping one and running its failed lines again."""

import json
import re

from server.dashboard.dashboard_stage import Screen, a_locked_screen
from server.dashboard.jobs_stage import a_desk
from server.http.front_stage import Play

from headgate.core.access import Role
from headgate.core.batch import Batch, BatchState

ENDPOINT = "/v1/chat/completions"


def _line(name: str, model: str) -> bytes:
    body = {"model": model, "messages": [{"role": "user", "content": name}]}
    return json.dumps({"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body}).encode()


async def _begin(screen: Screen, *models: str, tenant: str = "local", filename: str = "in.jsonl") -> Batch:
    gateway = screen.house.gateway
    lines = b"\n".join(_line(f"line {number}", model) for number, model in enumerate(models))
    file = await gateway.files.create(lines, filename=filename, tenant=tenant)
    made = await gateway.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, metadata={"team": "night"}, tenant=tenant
    )
    return made.batch


async def _ended(screen: Screen, *models: str, tenant: str = "local") -> Batch:
    batch = await _begin(screen, *models, tenant=tenant)
    return await screen.house.gateway.batches.wait(batch.id, timeout=30, tenant=tenant)


def test_a_batch_tells_its_counts_and_gives_its_files(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            batch = await _ended(screen, "m", "simulated/rejecting", "m")
            page = (await screen.page(f"/batches/{batch.id}")).text
            for words in (
                '<progress value="3" max="3"',
                "3 of 3",
                "1 failed",
                "completed",
                "&quot;team&quot;",
            ):
                assert words in page, words
            assert "Run the failed line again" in page
            lines = {}
            for which in ("input", "output", "errors"):
                assert f'href="/batches/{batch.id}/{which}.jsonl"' in page
                file = await screen.page(f"/batches/{batch.id}/{which}.jsonl")
                assert file.headers["content-type"] == "application/octet-stream"
                assert "attachment" in file.headers["content-disposition"]
                lines[which] = [json.loads(line)["custom_id"] for line in file.text.splitlines()]
            assert sorted(lines["output"]) == ["line 0", "line 2"]
            assert (lines["errors"], len(lines["input"])) == (["line 1"], 3)
            assert (await screen.page(f"/batches/{batch.id}/other.jsonl")).status_code == 404
            assert "3 of 3" in (await screen.page("/batches")).text

    play(scene)


def test_failed_lines_are_run_again_by_a_button(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            batch = await _ended(screen, "m", "simulated/rejecting")
            answer = await screen.post(f"/batches/{batch.id}/retry")
            found = re.match(r"/batches/(batch_[^?]+)", answer.headers["location"])
            assert found is not None
            again = await screen.house.gateway.batches.wait(found[1], timeout=30)
            assert (again.metadata or {})["retry_of"] == batch.id
            assert again.request_counts.total == 1

    play(scene)


def test_a_batch_is_cancelled_by_a_second_click(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            batch = await _begin(screen, *["simulated/slow"] * 30)
            assert "Yes, cancel it" in (await screen.page(f"/batches/{batch.id}")).text
            assert (await screen.post(f"/batches/{batch.id}/cancel")).status_code == 303
            ended = await screen.house.gateway.batches.wait(batch.id, timeout=30)
            assert ended.status is BatchState.CANCELLED
            assert (await screen.post(f"/batches/{batch.id}/cancel")).status_code == 409

    play(scene)


def test_what_is_wrong_with_its_lines_is_told(play: Play) -> None:
    async def scene() -> None:
        async with a_desk() as screen:
            gateway = screen.house.gateway
            file = await gateway.files.create(b"<script>alert(1)</script>\n", filename="<b>.jsonl")
            made = await gateway.batches.create(input_file_id=file.id, endpoint=ENDPOINT)
            await gateway.batches.wait(made.batch.id, timeout=30)
            page = (await screen.page(f"/batches/{made.batch.id}")).text
            assert "What is wrong with the input file" in page
            assert "&lt;b&gt;.jsonl" in page
            assert "<script>alert" not in page

    play(scene)


def test_readers_see_their_own_batches_and_can_do_nothing(play: Play) -> None:
    async def scene() -> None:
        async with a_locked_screen(work=True) as (screen, gateway):
            own = await _ended(screen, "simulated/rejecting", tenant="acme")
            foreign = await _ended(screen, "m", tenant="other")
            await screen.log_in(await gateway.key(role=Role.READ, tenant="acme"))
            page = (await screen.page("/batches")).text
            assert (own.id in page, foreign.id in page) == (True, False)
            assert "<button" not in (await screen.page(f"/batches/{own.id}")).text.partition("<main")[2]
            for path in ("", "/input.jsonl", "/output.jsonl"):
                assert (await screen.page(f"/batches/{foreign.id}{path}")).status_code == 404
            for verb in ("retry", "cancel"):
                assert (await screen.post(f"/batches/{own.id}/{verb}")).status_code == 403
            assert len(await screen.house.gateway.batches.list(tenant="acme")) == 1

            await screen.log_in(await gateway.key(role=Role.OPERATE))
            page = (await screen.page("/batches")).text
            assert (own.id in page, foreign.id in page) == (True, True)
            assert (await screen.post(f"/batches/{own.id}/retry")).status_code == 303
            assert len(await screen.house.gateway.batches.list(tenant="acme")) == 2

    play(scene)
