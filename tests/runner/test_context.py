"""What a task is given: durable steps, progress, records that are written with the job's end."""

import asyncio
from functools import partial
from typing import Any

import msgspec
import pytest
from jobstage import JobStages, on_job_stages

import headgate
from headgate import Context, InvalidRequest, JobState, Skip, StateConflict

USER = [{"role": "user", "content": "Summarise this."}]


class Facts(msgspec.Struct):
    lines: list[str]


# ---- Steps ------------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_step_that_was_done_is_not_paid_again(stages: JobStages) -> None:
    """Two calls succeed, the third fails twice: four calls in all, not nine."""

    @headgate.task("three", model="m")
    async def three(ctx: Context, given: Any) -> list[Any]:
        async def ask() -> str | None:
            return (await ctx.llm.complete(messages=USER)).content

        return [await ctx.step(name, ask) for name in ("first", "second", "third")]

    script = ["ok", "ok", "transient", "transient", "ok"]
    stage = await stages.open({"latency_s": 1.0, "script": script}, tasks=[three])
    job = await stage.ended(three)
    assert (job.state, job.attempts) == (JobState.COMPLETED, 3)
    assert stage.provider.calls == 5
    assert len(job.result) == 3


@on_job_stages
async def test_without_steps_every_attempt_pays_for_everything(stages: JobStages) -> None:
    """The counterexample: the same task written without steps."""

    @headgate.task("three", model="m")
    async def three(ctx: Context, given: Any) -> None:
        for _ in range(3):
            await ctx.llm.complete(messages=USER)

    script = ["ok", "ok", "transient", "ok", "ok", "transient", "ok", "ok", "ok"]
    stage = await stages.open({"latency_s": 1.0, "script": script}, tasks=[three])
    await stage.ended(three)
    assert stage.provider.calls == 9


@on_job_stages
async def test_a_step_survives_the_process(stages: JobStages) -> None:
    """The first worker goes away in the middle of the second step; the next one goes on from there."""
    ran: list[str] = []

    @headgate.task("two")
    async def two(ctx: Context, given: Any) -> list[str]:
        async def do(what: str) -> str:
            ran.append(what)
            await asyncio.sleep(10)
            return what

        return [await ctx.step("a", lambda: do("a")), await ctx.step("b", lambda: do("b"))]

    first = await stages.open(tasks=[two])
    handle = await first.submit(two)
    await asyncio.sleep(15)
    await first.gateway.aclose(drain_s=0)
    second = await stages.open(tasks=[two])
    job = await second.gateway.jobs.wait(handle.id)
    assert (job.result, job.attempts, job.deferrals) == (["a", "b"], 1, 1)
    assert ran == ["a", "b", "b"]


@on_job_stages
async def test_a_result_looks_the_same_when_it_is_new_and_when_it_is_stored(stages: JobStages) -> None:
    """A tuple that comes back as a list only after a failure is a bug that shows on the worst day."""
    seen: list[Any] = []

    @headgate.task("typed")
    async def typed(ctx: Context, given: Any) -> None:
        async def facts() -> Facts:
            return Facts(["a"])

        async def pair() -> tuple[int, int]:
            return 1, 2

        async def nothing() -> None:
            seen.append("ran")

        seen.append(await ctx.step("facts", facts, type=Facts))
        seen.append(await ctx.step("pair", pair))
        seen.append(await ctx.step("nothing", nothing))
        if ctx.job.attempt == 1:
            raise ValueError("again")

    stage = await stages.open(tasks=[typed])
    await stage.ended(typed)
    assert seen == [Facts(["a"]), [1, 2], "ran", None, Facts(["a"]), [1, 2], None], "None is a result too"


@on_job_stages
async def test_a_step_name_is_used_once_in_a_run(stages: JobStages) -> None:
    """In a loop with one name every turn would silently get the first one's result: wrong data, and no error."""

    @headgate.task("collides")
    async def collides(ctx: Context, given: Any) -> list[Any]:
        return [await ctx.step("same", partial(asyncio.sleep, 0, turn)) for turn in range(2)]

    stage = await stages.open(tasks=[collides])
    job = await stage.ended(collides)
    assert (job.state, job.reason) == (JobState.DEAD_LETTER, "permanent")
    assert "'same' was used before" in (job.error or "")


@on_job_stages
async def test_two_jobs_never_share_a_step(stages: JobStages) -> None:
    @headgate.task("own")
    async def own(ctx: Context, given: int) -> int:
        async def double() -> int:
            return given * 2

        return await ctx.step("double", double)

    stage = await stages.open(tasks=[own])
    jobs = await stage.gateway.jobs.submit_many([{"task": "own", "input": number} for number in range(20)])
    assert [await job.result() for job in jobs] == [number * 2 for number in range(20)]


@on_job_stages
async def test_steps_may_run_side_by_side(stages: JobStages) -> None:
    ran: list[str] = []

    @headgate.task("wide")
    async def wide(ctx: Context, given: Any) -> list[str]:
        async def do(name: str) -> str:
            ran.append(name)
            await asyncio.sleep(5)
            return name

        results = await asyncio.gather(*(ctx.step(name, partial(do, name)) for name in "abcde"))
        if ctx.job.attempt == 1:
            raise ValueError("again")
        return list(results)

    stage = await stages.open(tasks=[wide])
    job = await stage.ended(wide)
    assert (job.result, sorted(ran)) == (list("abcde"), list("abcde"))
    assert stage.now == pytest.approx(10, abs=0.01), "5 s of work, 5 s of waiting"


@pytest.mark.parametrize(
    ("name", "made", "reason"),
    [
        ("a", object(), "permanent"),
        ("a", "x" * (4 * 1024 * 1024), "permanent"),
        ("half \ud800", 1, "permanent"),
    ],
)
@on_job_stages
async def test_a_step_that_cannot_be_stored_fails_its_job_loudly(
    stages: JobStages, name: str, made: Any, reason: str
) -> None:
    @headgate.task("odd")
    async def odd(ctx: Context, given: Any) -> None:
        async def make() -> Any:
            return made

        await ctx.step(name, make)

    stage = await stages.open(tasks=[odd])
    job = await stage.ended(odd, max_attempts=1)
    assert (job.state, job.reason) == (JobState.DEAD_LETTER, reason)
    assert job.error


@on_job_stages
async def test_an_edited_replay_runs_its_steps_anew_and_a_plain_one_does_not(stages: JobStages) -> None:
    """The old results belong to the old input."""
    ran: list[str] = []

    @headgate.task("steps")
    async def steps(ctx: Context, given: str) -> str:
        async def do() -> str:
            ran.append(given)
            return given

        made = await ctx.step("do", do)
        if len(ran) < 2 and ctx.job.generation < 3:
            raise headgate.Reject("not yet")
        return made

    stage = await stages.open(tasks=[steps])
    handle = await stage.submit(steps, "old")
    await handle.wait()
    again = await stage.gateway.dead_letters.replay(handle.id)
    assert (await again.wait()).state is JobState.DEAD_LETTER
    assert ran == ["old"], "the stored step was used"
    edited = await stage.gateway.dead_letters.replay(handle.id, input="new")
    assert await edited.result() == "new"
    assert ran == ["old", "new"]


# ---- Progress -----------------------------------------------------------------------------------------------


@on_job_stages
async def test_progress_is_seen_while_the_job_runs(stages: JobStages) -> None:
    @headgate.task("long")
    async def long(ctx: Context, given: Any) -> None:
        for done in range(1, 5):
            await ctx.progress(done, 4, f"part {done}")
            await asyncio.sleep(10)

    stage = await stages.open(tasks=[long])
    handle = await stage.submit(long)
    seen = []
    for _ in range(4):
        await asyncio.sleep(9)
        seen.append((await handle.job()).progress)
        await asyncio.sleep(1)
    assert seen == [{"done": done, "total": 4, "note": f"part {done}"} for done in range(1, 5)]
    assert (await handle.wait()).progress == {"done": 4, "total": 4, "note": "part 4"}


@pytest.mark.parametrize("note", ["half \ud83d", "a\0b", "\ud800\0"])
@on_job_stages
async def test_odd_text_in_a_note_does_not_kill_the_job(stages: JobStages, note: str) -> None:
    """A note is for people; whatever a model or a web page put into it, the work goes on."""

    @headgate.task("notes")
    async def notes(ctx: Context, given: Any) -> str:
        await ctx.progress(1, 2, note)
        return "done"

    stage = await stages.open(tasks=[notes])
    job = await stage.ended(notes)
    assert (job.state, job.attempts) == (JobState.COMPLETED, 1)
    assert not set("\0\ud83d\ud800") & set(job.progress["note"])


@pytest.mark.parametrize("done", [float("nan"), float("inf"), "half", None, True])
@on_job_stages
async def test_progress_is_a_number_each_time_it_is_told(stages: JobStages, done: Any) -> None:
    """Also when it is not written: a mistake that shows once in a while is hard to find."""

    @headgate.task("counts")
    async def counts(ctx: Context, given: Any) -> None:
        await ctx.progress(1)
        with pytest.raises(InvalidRequest, match="progress: done must be a finite number, not"):
            await ctx.progress(done)
        with pytest.raises(InvalidRequest, match="progress: total must be a finite number, not"):
            await ctx.progress(1, float("nan"))

    stage = await stages.open(tasks=[counts])
    assert (await stage.ended(counts)).state is JobState.COMPLETED


@on_job_stages
async def test_progress_may_be_told_often_and_is_written_twice_a_second_at_most(stages: JobStages) -> None:
    """The last word (`done == total`) is always written."""
    written: list[float] = []

    @headgate.task("often")
    async def often(ctx: Context, given: Any) -> None:
        for done in range(1001):
            await ctx.progress(done, 1000)
            await asyncio.sleep(0.01)

    stage = await stages.open(tasks=[often])
    handle = await stage.submit(often)
    while not (job := await handle.job()).state.final:
        if job.progress is not None and job.progress["done"] not in written:
            written.append(job.progress["done"])
        await stages.world.clock.sleep(0.05)
    assert job.progress == {"done": 1000, "total": 1000}
    assert len(written) <= 22, "10 s, twice a second"


# ---- Records --------------------------------------------------------------------------------------------------


@headgate.task("keeps")
async def keeps(ctx: Context, given: dict[str, Any]) -> str:
    ctx.save("pages", given.get("id", "p1"), {"title": "T"}, unique_key=given.get("key"), text="Some Text")
    if given.get("end") == "fail":
        raise ValueError("after saving")
    if given.get("end") == "skip":
        raise Skip("known already")
    return "kept"


@on_job_stages
async def test_a_record_is_there_exactly_when_its_job_has_ended_well(stages: JobStages) -> None:
    stage = await stages.open(tasks=[keeps])
    records = stage.gateway.records
    failed = await stage.ended(keeps, {"id": "failed", "end": "fail"}, max_attempts=2)
    assert failed.state is JobState.DEAD_LETTER
    assert await records.get("pages", "failed") is None
    for end in ("well", "skip"):
        job = await stage.ended(keeps, {"id": end, "end": end})
        kept = await records.get("pages", end)
        assert kept is not None
        assert (kept.body, kept.text, kept.job_id) == ({"title": "T"}, "Some Text", job.id)


@on_job_stages
async def test_a_unique_key_that_is_taken_makes_the_second_job_a_permanent_dead_letter(
    stages: JobStages,
) -> None:
    """All or nothing: neither its record nor its result is there, and nobody else suffers."""
    stage = await stages.open(tasks=[keeps])
    assert (await stage.ended(keeps, {"id": "one", "key": "https://a"})).state is JobState.COMPLETED
    handles = [await stage.submit(keeps, {"id": f"p{n}", "key": f"https://{n}"}) for n in range(10)]
    second = await stage.ended(keeps, {"id": "two", "key": "https://a"})
    assert (second.state, second.reason, second.attempts, second.result) == (
        JobState.DEAD_LETTER,
        "permanent",
        1,
        None,
    )
    assert "a record's unique key is taken: pages 'https://a'" in str(second.error)
    assert await stage.gateway.records.get("pages", "two") is None
    assert [(await handle.wait()).state for handle in handles] == [JobState.COMPLETED] * 10


@on_job_stages
async def test_one_key_for_two_records_of_one_job_is_a_conflict_too(stages: JobStages) -> None:
    @headgate.task("twins")
    async def twins(ctx: Context, given: Any) -> None:
        ctx.save("pages", "a", {}, unique_key="same")
        ctx.save("pages", "b", {}, unique_key="same")

    stage = await stages.open(tasks=[twins])
    job = await stage.ended(twins)
    assert (job.state, job.reason) == (JobState.DEAD_LETTER, "permanent")
    assert await stage.gateway.records.list("pages") == []


@on_job_stages
async def test_a_record_that_no_database_can_hold_fails_its_own_job_only(stages: JobStages) -> None:
    """One settlement with half a character in it left every job that ended with it running for ever."""

    @headgate.task("poisoned")
    async def poisoned(ctx: Context, given: Any) -> int:
        await asyncio.sleep(5)
        if given == 7:
            ctx.save("pages", "half \ud800", {})
        return int(given)

    stage = await stages.open(tasks=[poisoned])
    handles = [await stage.submit(poisoned, number, max_attempts=1) for number in range(20)]
    jobs = [await handle.wait() for handle in handles]
    assert [job.state for job in jobs if job.input != 7] == [JobState.COMPLETED] * 19
    assert jobs[7].state is JobState.DEAD_LETTER


@on_job_stages
async def test_a_record_that_comes_after_the_jobs_end_is_refused(stages: JobStages) -> None:
    """A record that is saved too late would be lost without a word."""
    left: list[Context] = []

    @headgate.task("leaves")
    async def leaves(ctx: Context, given: Any) -> None:
        left.append(ctx)

    stage = await stages.open(tasks=[leaves])
    job = await stage.ended(leaves)
    with pytest.raises(
        StateConflict, match=f"job {job.id} has ended .*await everything before the task returns"
    ):
        left[0].save("late", "1", {})


@on_job_stages
async def test_a_submitted_record_comes_with_its_job_or_not_at_all(stages: JobStages) -> None:
    stage = await stages.open(tasks=[keeps], work=False)
    page = headgate.record("pages", "one", {"a": 1}, unique_key="https://a")
    handle = await stage.submit(keeps, {}, records=[page])
    kept = await stage.gateway.records.find("pages", "https://a")
    assert kept is not None
    assert kept.job_id == handle.id
    rival = headgate.record("pages", "two", {}, unique_key="https://a")
    with pytest.raises(headgate.RecordExists) as caught:
        await stage.submit(keeps, {}, records=[rival])
    assert caught.value.record_id == "one"
    assert (await stage.gateway.jobs.count(tenant=None))["pending"] == 1


# ---- The job itself ---------------------------------------------------------------------------------------------


@on_job_stages
async def test_a_task_knows_which_run_of_which_job_it_is(stages: JobStages) -> None:
    seen: list[Any] = []

    @headgate.task("knows", model="m")
    async def knows(ctx: Context, given: Any) -> None:
        seen.append(ctx.job)
        if len(seen) < 3:
            raise ValueError("again")

    stage = await stages.open(tasks=[knows])
    handle = await stage.submit(knows, max_attempts=2, tenant="t")
    await handle.wait()
    await (await stage.gateway.dead_letters.replay(handle.id, tenant="t")).wait()
    assert [(info.attempt, info.generation) for info in seen] == [(1, 1), (2, 1), (1, 2)]
    assert {(info.id, info.task, info.tenant, info.model, info.max_attempts) for info in seen} == {
        (handle.id, "knows", "t", "m", 2)
    }


@on_job_stages
async def test_a_call_inside_a_job_is_one_attempt_and_a_bad_answer_is_generated_anew(
    stages: JobStages,
) -> None:
    """The job owns the retries: a failure is told to the task at once, not tried three times inside."""

    @headgate.task("asks", model="m")
    async def asks(ctx: Context, given: Any) -> str | None:
        return (await ctx.llm.complete(messages=USER)).content

    stage = await stages.open({"latency_s": 1.0, "script": ["transient", "blank", "ok"]}, tasks=[asks])
    handle = await stage.submit(asks)
    await asyncio.sleep(2)
    assert ((await handle.job()).attempts, stage.provider.calls) == (1, 1)
    job = await handle.wait()
    assert (job.attempts, stage.provider.calls) == (2, 3), "the blank one was repeated within the attempt"


@on_job_stages
async def test_a_task_may_ask_another_model_and_for_embeddings(stages: JobStages) -> None:
    @headgate.task("asks", model="m")
    async def asks(ctx: Context, given: Any) -> list[Any]:
        reply = await ctx.llm.complete(messages=USER, model="simulated/instant")
        vectors = (await ctx.llm.embed(input=["a", "b"])).vectors
        return [reply.model, len(vectors)]

    stage = await stages.open(tasks=[asks])
    assert (await stage.ended(asks)).result == ["simulated/instant", 2]
    assert stage.provider.calls == 1


@pytest.mark.parametrize("messages", [[], "text", [{"content": "no role"}]])
@on_job_stages
async def test_a_call_that_makes_no_sense_is_permanent(stages: JobStages, messages: Any) -> None:
    @headgate.task("asks", model="m")
    async def asks(ctx: Context, given: Any) -> None:
        await ctx.llm.complete(messages=messages)

    stage = await stages.open(tasks=[asks])
    job = await stage.ended(asks)
    assert (job.reason, job.attempts, stage.provider.calls) == ("permanent", 1, 0)


# ---- The built-in tasks -----------------------------------------------------------------------------------------


@on_job_stages
async def test_a_call_without_any_model_says_where_to_name_one(stages: JobStages) -> None:
    @headgate.task("asks")
    async def asks(ctx: Context, what: str) -> None:
        if what == "embed":
            await ctx.llm.embed(input="a")
        await ctx.llm.complete(messages=USER)

    stage = await stages.open(tasks=[asks])
    for what in ("complete", "embed"):
        job = await stage.ended(asks, what)
        assert job.reason == "permanent"
        assert "has no model: give @task(model=…) or a `model` in its input" in str(job.error)


@on_job_stages
async def test_chat_takes_and_gives_what_openai_does(stages: JobStages) -> None:
    stage = await stages.open()
    body = {"model": "m", "messages": USER, "temperature": 0.5, "service_tier": "auto", "stream": False}
    job = await stage.ended("chat", body)
    assert (job.model, job.state) == ("m", JobState.COMPLETED)
    assert job.result["object"] == "chat.completion"
    choice = job.result["choices"][0]
    assert choice["message"]["content"].startswith("simulated answer")
    assert job.result["usage"]["total_tokens"] > 0
    assert job.result["created"] == int(stage.epoch) - 1


@on_job_stages
async def test_the_model_of_the_submission_goes_over_the_one_in_the_body(stages: JobStages) -> None:
    """The worker counts the job's places by it, so its calls must go there."""
    stage = await stages.open()
    for task, body in (("chat", {"messages": USER}), ("embeddings", {"input": "a"})):
        job = await stage.ended(task, {"model": "m", **body}, model="simulated/instant")
        assert (job.model, job.result["model"]) == ("simulated/instant", "simulated/instant")
    assert stage.provider.calls == 0


@pytest.mark.parametrize(("task", "body"), [("chat", {"messages": USER}), ("embeddings", {"input": "a"})])
@on_job_stages
async def test_a_body_without_a_model_goes_to_the_submissions(
    stages: JobStages, task: str, body: dict[str, Any]
) -> None:
    stage = await stages.open()
    job = await stage.ended(task, body, model="m")
    assert (job.state, job.model, job.input) == (JobState.COMPLETED, "m", body)
    with pytest.raises(InvalidRequest, match=f"{task} needs a model: .*submit\\(model=…\\)") as caught:
        await stage.submit(task, body)
    assert caught.value.param == "model"


@on_job_stages
async def test_embeddings_take_and_give_what_openai_does(stages: JobStages) -> None:
    stage = await stages.open()
    job = await stage.ended("embeddings", {"model": "m", "input": ["a", "b"], "dimensions": 4})
    assert [len(one["embedding"]) for one in job.result["data"]] == [4, 4]
    assert [one["index"] for one in job.result["data"]] == [0, 1]


@pytest.mark.parametrize(
    ("task", "body"),
    [
        ("chat", {"model": "m", "messages": []}),
        ("chat", {"model": "m"}),
        ("chat", {"messages": USER}),
        ("chat", {"model": 5, "messages": USER}),
        ("chat", {"model": "m", "messages": USER, "stream": True}),
        ("chat", {"model": "m", "messages": USER, "check": "me"}),
        ("chat", []),
        ("embeddings", {"model": "m", "input": []}),
        ("embeddings", {"model": "m", "input": [""]}),
        ("embeddings", {"model": "m"}),
        ("embeddings", {"model": "m", "input": "a", "stream": True}),
    ],
)
@on_job_stages
async def test_a_body_that_makes_no_sense_is_refused_at_submit(
    stages: JobStages, task: str, body: Any
) -> None:
    stage = await stages.open(work=False)
    with pytest.raises(InvalidRequest):
        await stage.submit(task, body)
    assert sum((await stage.gateway.jobs.count(tenant=None)).values()) == 0


# ---- Records it finds, answers it regenerates ---------------------------------------------------------------------


@on_job_stages
async def test_a_task_finds_the_records_of_its_tenant_only(stages: JobStages) -> None:
    @headgate.task("look", model=None)
    async def look(ctx: Context, given: Any) -> Any:
        found = await ctx.records.get("notes", "n1")
        return None if found is None else found.body

    stage = await stages.open(tasks=[look])
    await stage.gateway.records.put("notes", "n1", {"of": "local"})
    assert (await stage.ended(look)).result == {"of": "local"}
    foreign = await stage.submit(look, tenant="other")
    assert (await foreign.wait()).result is None


@pytest.mark.parametrize("most", [0, 1, 3])
@on_job_stages
async def test_an_unusable_answer_is_generated_anew_as_often_as_the_task_says(
    stages: JobStages, most: int
) -> None:
    @headgate.task("picky", model="m")
    async def picky(ctx: Context, given: Any) -> None:
        await ctx.llm.complete(messages=USER, check=lambda _: False, regenerations=most)

    stage = await stages.open(tasks=[picky])
    job = await stage.ended(picky, max_attempts=1)
    assert (job.state, job.error_class, stage.provider.calls) == (
        JobState.DEAD_LETTER,
        "invalid_output",
        most + 1,
    )
