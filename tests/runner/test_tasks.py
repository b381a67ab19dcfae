"""Tasks: what may be one, how its input is checked, where a worker finds them."""

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pytest
from jobstage import JobStages, on_job_stages

import headgate
from headgate import Context, InvalidRequest, JobState, SettingsError, Task, UnknownModel, UnknownTask
from headgate.core.events import JobSettled
from headgate.runner.tasks import TaskTable


class Article(msgspec.Struct):
    url: str
    words: int = 0


@dataclass
class Page:
    url: str
    tags: list[str]


class Note(TypedDict):
    text: str


@headgate.task("of-struct")
async def of_struct(ctx: Context, article: Article) -> str:
    return f"{type(article).__name__} {article.url} {article.words}"


@headgate.task("of-dataclass")
async def of_dataclass(ctx: Context, page: Page) -> str:
    return f"{type(page).__name__} {page.url} {page.tags}"


@headgate.task("of-typed-dict")
async def of_typed_dict(ctx: Context, note: Note) -> str:
    return f"{type(note).__name__} {note['text']}"


@headgate.task("of-anything")
async def of_anything(ctx: Context, given: Any) -> Any:
    return given


@headgate.task("untyped")
async def untyped(ctx, given):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201 - as users write them
    return given


@headgate.task("named", model="m")
async def named(ctx: Context, given: Any) -> str | None:
    return ctx.job.model


TYPED: list[Task[Any, Any]] = [of_struct, of_dataclass, of_typed_dict, of_anything, untyped, named]


@pytest.mark.parametrize(
    ("task", "given", "seen"),
    [
        ("of-struct", Article(url="u", words=3), "Article u 3"),
        ("of-struct", {"url": "u"}, "Article u 0"),
        ("of-dataclass", Page("u", ["a"]), "Page u ['a']"),
        ("of-dataclass", {"url": "u", "tags": []}, "Page u []"),
        ("of-typed-dict", {"text": "t"}, "dict t"),
        ("of-anything", [1, {"a": None}], [1, {"a": None}]),
        ("of-anything", None, None),
        ("untyped", "given", "given"),
    ],
)
@on_job_stages
async def test_a_task_gets_its_input_as_the_type_it_names(
    stages: JobStages, task: str, given: Any, seen: Any
) -> None:
    stage = await stages.open(tasks=TYPED)
    assert await (await stage.submit(task, given)).result() == seen


@pytest.mark.parametrize(
    ("task", "given", "where"),
    [
        ("of-struct", {"url": 5}, r"\$\.url"),
        ("of-struct", {"words": 1}, "missing required field `url`"),
        ("of-struct", None, "Article|object"),
        ("of-dataclass", {"url": "u", "tags": ["a", 7]}, r"\$\.tags\[1\]"),
        ("of-typed-dict", {"text": None}, r"\$\.text"),
        ("of-struct", "not an object", "object"),
        ("of-anything", object(), "must be JSON"),
        ("of-anything", {"a": {1, "b"}.__class__}, "must be JSON"),
        ("of-anything", "\ud800", "must be JSON"),
    ],
)
@on_job_stages
async def test_an_input_that_does_not_fit_is_refused_with_its_path_and_nothing_is_stored(
    stages: JobStages, task: str, given: Any, where: str
) -> None:
    """A job that could only fail must not be accepted: its submitter is still there to hear of it."""
    stage = await stages.open(tasks=TYPED, work=False)
    with pytest.raises(InvalidRequest, match=where) as caught:
        await stage.submit(task, given)
    assert caught.value.param == "input"
    assert sum((await stage.gateway.jobs.count(tenant=None)).values()) == 0


@on_job_stages
async def test_a_task_by_itself_can_be_submitted_and_called(stages: JobStages) -> None:
    stage = await stages.open(tasks=TYPED)
    job = await stage.ended(of_struct, Article("u"))
    assert (job.task, job.result) == ("of-struct", "Article u 0")
    context: Any = None
    assert await of_struct(context, Article("direct")) == "Article direct 0"


@on_job_stages
async def test_an_unknown_task_is_refused_with_the_one_that_was_meant(stages: JobStages) -> None:
    stage = await stages.open(tasks=TYPED, work=False)
    with pytest.raises(
        UnknownTask, match="no task is called 'of-strukt'; did you mean 'of-struct'"
    ) as caught:
        await stage.submit("of-strukt", {})
    assert caught.value.param == "task"
    with pytest.raises(UnknownTask, match="known: chat, embeddings, named"):
        await stage.submit("z" * 90, {})
    assert sum((await stage.gateway.jobs.count(tenant=None)).values()) == 0


@pytest.mark.parametrize("name", ["", 5, None, "a\nb", "x" * 300])
@on_job_stages
async def test_a_task_name_that_is_none_is_refused(stages: JobStages, name: Any) -> None:
    stage = await stages.open(tasks=TYPED, work=False)
    with pytest.raises(InvalidRequest, match="task must be"):
        await stage.submit(name, {})


def test_what_is_no_async_function_of_two_arguments_is_no_task() -> None:
    """Found when the module is imported, not when the first job fails."""

    def plain(ctx: Context, given: Any) -> None: ...
    async def one(ctx: Context) -> None: ...
    async def three(ctx: Context, given: Any, more: Any) -> None: ...
    async def keyword(ctx: Context, *, given: Any) -> None: ...
    async def stream(ctx: Context, given: Any):  # type: ignore[no-untyped-def]  # noqa: ANN202
        yield 1

    for run in (plain, one, three, keyword, stream, 5):
        with pytest.raises(SettingsError, match=r"must be an async function|must take two arguments"):
            headgate.task("t")(run)  # type: ignore[arg-type]
    for name in ("", "a\tb", 5):
        with pytest.raises(InvalidRequest):
            headgate.task(name)(of_struct.run)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"retry": "bedrock"},
        {"retry": 3},
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": "60"},
        {"timeout_s": True},
        {"timeout_s": float("inf")},
        {"timeout_s": float("nan")},
        {"model": 5},
        {"model": ""},
    ],
)
def test_an_option_of_a_task_that_makes_no_sense_is_found_when_it_is_defined(options: Any) -> None:
    (name,) = options
    with pytest.raises(SettingsError, match=f"task 't': {name} must be"):
        headgate.task("t", **options)(of_struct.run)


def test_an_input_type_that_is_not_known_is_named() -> None:
    async def forward(ctx: Context, given: "Unheard") -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    with pytest.raises(SettingsError, match=r"task 't': its input's type is not known.*Unheard"):
        headgate.task("t")(forward)


def test_two_tasks_of_one_name_are_refused_but_one_twice_is_not() -> None:
    twin = headgate.task("of-struct")(of_struct.run)
    with pytest.raises(SettingsError, match="two tasks are called 'of-struct'"):
        TaskTable([of_struct, twin])
    assert TaskTable([of_struct, of_struct]).names() == ["of-struct"]
    with pytest.raises(SettingsError, match="is no task"):
        TaskTable([of_struct.run])  # type: ignore[list-item]


@on_job_stages
async def test_a_built_in_name_cannot_be_taken(stages: JobStages) -> None:
    with pytest.raises(SettingsError, match="two tasks are called 'chat'"):
        await stages.open(tasks=[headgate.task("chat")(of_struct.run)])


# ---- Where they come from ---------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of tasks, and an installed distribution that brings it as an entry point."""
    name = "brought_tasks_of_a_test"
    (tmp_path / f"{name}.py").write_text(
        textwrap.dedent("""
            import headgate
            from headgate import Skip, task

            @task("first")
            async def first(ctx, given):
                return "first"

            @task("second")
            async def second(ctx, given):
                return "second"

            no_task = 5
        """)
    )
    (tmp_path / "broken_tasks_of_a_test.py").write_text("import nothing_of_that_name")
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    for each in (name, "broken_tasks_of_a_test"):
        sys.modules.pop(each, None)


@on_job_stages
async def test_tasks_are_loaded_by_the_import_path_in_the_settings(stages: JobStages, module: str) -> None:
    stage = await stages.open(jobs={"tasks": [module]})
    assert [await (await stage.submit(name)).result() for name in ("first", "second")] == ["first", "second"]


@on_job_stages
async def test_one_task_is_loaded_by_its_attribute(stages: JobStages, module: str) -> None:
    stage = await stages.open(jobs={"tasks": [f"{module}:second"]})
    assert await (await stage.submit("second")).result() == "second"
    with pytest.raises(UnknownTask):
        await stage.submit("first")


@on_job_stages
async def test_installed_packages_bring_tasks_by_entry_point(
    stages: JobStages, module: str, tmp_path: Path
) -> None:
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[headgate.tasks]\nall = {module}\n")
    stage = await stages.open()
    assert await (await stage.submit("first")).result() == "first"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere_of_a_test", "cannot be imported: No module named 'nowhere_of_a_test'"),
        ("broken_tasks_of_a_test", "cannot be imported: No module named 'nothing_of_that_name'"),
        ("brought_tasks_of_a_test:third", "no task"),
        ("brought_tasks_of_a_test:no_task", "is no task"),
        ("json", "has no task"),
    ],
)
@on_job_stages
async def test_a_path_that_leads_to_no_task_is_a_mistake_in_the_settings(
    stages: JobStages, module: str, path: str, says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        await stages.open(jobs={"tasks": [path]})


# ---- What a node does not know ------------------------------------------------------------------------


@on_job_stages
async def test_a_job_whose_task_this_node_does_not_know_waits_for_one_that_does(stages: JobStages) -> None:
    """A rolling update: the old node must not burn the attempts of the new node's jobs."""
    new = await stages.open(tasks=TYPED, work=False)
    old = await stages.open()
    handle = await new.submit("of-anything", 1, max_attempts=1)
    await stages.world.clock.sleep(100)
    job = await handle.job()
    assert (job.state, job.attempts, job.history) == (JobState.PENDING, 0, ())
    assert job.deferrals == 13, "it asks after 1, 2, 4 and 8 s, then every 10 s"
    assert job.error == "no task is called 'of-anything' here"
    assert {event.failure for event in old.told(JobSettled)} == {"deferred"}
    await old.gateway.aclose()
    await new.gateway.work()
    assert await handle.result() == 1


@on_job_stages
async def test_a_job_of_a_model_this_node_does_not_know_is_left_to_others(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    knows = await stages.open(
        tasks=TYPED, work=False, models={"special": {"upstreams": [{"provider": "simulated"}]}}
    )
    old = await stages.open(tasks=TYPED)
    handle = await knows.submit("of-anything", 1, model="special")
    await stages.world.clock.sleep(100)
    job = await handle.job()
    assert (job.state, job.attempts, job.deferrals) == (JobState.PENDING, 0, 0)
    warnings = [record.getMessage() for record in caplog.records if "special" in record.getMessage()]
    assert len(warnings) == 1, "told once, not at every look"
    assert "not in the settings of this node" in warnings[0]
    await knows.gateway.work()
    assert await handle.result() == 1
    assert old.told(JobSettled) == []


@on_job_stages
async def test_a_job_of_an_unknown_model_is_refused_at_submit(stages: JobStages) -> None:
    stage = await stages.open(tasks=TYPED, work=False)
    for asked in ({"model": "n"}, {"given": {"model": "n"}}):
        with pytest.raises(UnknownModel, match="'n'"):
            await stage.submit("of-anything", **asked)
    with pytest.raises(InvalidRequest):
        await stage.submit("of-anything", model="x" * 300)
    assert sum((await stage.gateway.jobs.count(tenant=None)).values()) == 0


@on_job_stages
async def test_the_model_is_the_submissions_else_the_tasks_else_the_inputs(stages: JobStages) -> None:
    stage = await stages.open(tasks=TYPED, work=False)
    asked: list[tuple[str, Any, dict[str, Any], str | None]] = [
        ("named", {"model": "simulated"}, {}, "m"),
        ("named", {"model": "simulated"}, {"model": "simulated/slow"}, "simulated/slow"),
        ("of-anything", {"model": "m"}, {}, "m"),
        ("of-anything", {}, {}, None),
        ("of-anything", {"model": 5}, {}, None),
    ]
    for task, given, options, model in asked:
        assert (await (await stage.submit(task, given, **options)).job()).model == model


@on_job_stages
async def test_an_input_that_no_longer_fits_when_it_runs_is_permanent(stages: JobStages) -> None:
    """The task was changed between submission and run: repeating will not help, and nothing was called."""
    before = await stages.open(tasks=[headgate.task("t")(of_anything.run)], work=False)
    handle = await before.submit("t", {"url": 5})
    await stages.open(tasks=[headgate.task("t")(of_struct.run)])
    job = await handle.wait()
    assert (job.state, job.reason, job.attempts) == (JobState.DEAD_LETTER, "permanent", 1)
    assert "$.url" in str(job.error)


class Car(msgspec.Struct):
    model: str


@on_job_stages
async def test_an_input_whose_model_means_something_else_says_so_at_the_task(stages: JobStages) -> None:
    """`model` is an everyday word: a car has one too."""

    @headgate.task("sells")
    async def sells(ctx: Context, car: Car) -> str:
        return car.model

    @headgate.task("sells-cars", model=None)
    async def sells_cars(ctx: Context, car: Car) -> str:
        return car.model

    stage = await stages.open(tasks=[sells, sells_cars])
    with pytest.raises(UnknownModel, match=r"no model is called 'T'.*@task\('sells', model=None\)"):
        await stage.submit(sells, Car("T"))
    for given in (Car("T"), {"model": "T"}):
        job = await stage.ended(sells_cars, given)
        assert (job.result, job.model) == ("T", None)
    assert (await stage.ended(sells_cars, Car("T"), model="m")).model == "m"


# ---- Workers that know different tasks ----------------------------------------------------------------


@pytest.mark.parametrize("first_knows", [True, False])
@on_job_stages
async def test_a_worker_that_does_not_know_a_task_does_not_keep_its_jobs_from_one_that_does(
    stages: JobStages, caplog: pytest.LogCaptureFixture, first_knows: bool
) -> None:
    knows, knows_not = (TYPED, []) if first_knows else ([], TYPED)
    await stages.open(tasks=knows)
    await stages.open(tasks=knows_not)
    desk = await stages.open(tasks=TYPED, work=False)
    handles = []
    for number in range(50):
        handles.append(await desk.submit("of-anything", number, max_attempts=1))
        await stages.world.clock.sleep(0.1)
    waits_s = []
    for handle in handles:
        job = await handle.wait()
        assert (job.state, job.attempts) == (JobState.COMPLETED, 1)
        assert job.finished_at is not None
        waits_s.append((job.finished_at - job.created_at).total_seconds())
    assert max(waits_s) < 5
    told = [record.getMessage() for record in caplog.records if "does not know" in record.getMessage()]
    assert len(told) <= 1, "once per task, not once per job"


@on_job_stages
async def test_a_job_whose_task_nobody_here_knows_is_told_once(
    stages: JobStages, caplog: pytest.LogCaptureFixture
) -> None:
    desk = await stages.open(tasks=TYPED, work=False)
    await stages.open()
    for number in range(3):
        await desk.submit("of-anything", number)
    await stages.world.clock.sleep(100)
    told = [record for record in caplog.records if "does not know" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]
    assert told[0].getMessage() == (
        "jobs of task 'of-anything' wait: this worker does not know it; start it with"
        " headgate work --tasks package.module, or hand the task to headgate.open(tasks=[…])"
    )


def test_a_task_of_headgate_itself_is_found_from_inside_only() -> None:
    """Batches and deliveries are jobs too, but nobody hands them in by name, nor is told of them."""

    async def run(ctx: Context, given: Any) -> None:
        """Never reached here."""

    table = TaskTable([of_anything, Task("headgate.own", run, inside=True)])

    assert table.names() == ["of-anything"]
    assert table.find("headgate.own", inside=True).name == "headgate.own"
    with pytest.raises(UnknownTask, match="known: of-anything"):
        table.find("headgate.own")
