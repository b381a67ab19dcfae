"""`headgate jobs submit`: hand in a job and, if asked to, wait for its end."""

from datetime import datetime
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from headgate.cli import waiting
from headgate.cli.backend import Backend
from headgate.cli.inputs import read_input, read_object
from headgate.cli.options import (
    ConfigOption,
    FileOption,
    JsonOption,
    TasksOption,
    TenantOption,
    read_moment,
    read_seconds,
)
from headgate.cli.reaching import AtGateway, reach
from headgate.cli.remote import UrlOption
from headgate.cli.running import settings_with_tasks
from headgate.cli.screen import note, show, show_json
from headgate.core.call import Lane
from headgate.core.errors import InvalidRequest

TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", show_default=False)]
InputArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT", help="The input as JSON; - reads stdin; none is null.", show_default=False
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model it calls; default: its task's.")]
LaneOption = Annotated[Lane, typer.Option("--lane", help="Does somebody wait for it?")]
PriorityOption = Annotated[int, typer.Option("--priority", min=0, max=9, help="0 goes first, 9 last.")]
AttemptsOption = Annotated[
    int | None, typer.Option("--max-attempts", min=1, max=100, help="Attempts; default: its task's.")
]
RunAtOption = Annotated[
    datetime | None,
    typer.Option("--run-at", parser=read_moment, metavar="ISO", help="Not before: 2026-01-31T12:00:00Z."),
]
ExpiresOption = Annotated[
    float | None,
    typer.Option("--expires-after-s", metavar="SECONDS", help="A dead letter if not done by then."),
]
TimeoutOption = Annotated[
    float | None, typer.Option("--timeout-s", metavar="SECONDS", help="How long one attempt may take.")
]
DedupOption = Annotated[
    str | None, typer.Option("--dedup-key", metavar="KEY", help="Join a live job of this task with this key.")
]
NoHoldOption = Annotated[
    bool, typer.Option("--no-hold", help="Do not wait for a misconfigured upstream to be mended: fail.")
]
MetadataOption = Annotated[
    str | None, typer.Option("--metadata", metavar="JSON", help="An object kept with the job.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="The same submission again gives the same job."),
]
WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait",
        parser=read_seconds,
        metavar="[SECONDS]",
        help="Wait for its end, so long at most, and print its result; exit codes as for `jobs wait`.",
    ),
]


class SubmitCommand(TyperCommand):
    """`--wait` with or without a number of seconds."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_patience(args))


def with_patience(words: list[str]) -> list[str]:
    """A bare `--wait` waits as long as it takes."""
    end = words.index("--") if "--" in words else len(words)
    return [
        "--wait=inf" if word == "--wait" and at < end and not _is_number(words[at + 1 : at + 2]) else word
        for at, word in enumerate(words)
    ]


def _is_number(words: list[str]) -> bool:
    try:
        float(words[0])
    except (IndexError, ValueError):
        return False
    return True


def command(
    task: TaskArgument,
    words: InputArgument = None,
    *,
    file: FileOption = None,
    model: ModelOption = None,
    lane: LaneOption = Lane.BATCH,
    priority: PriorityOption = 5,
    max_attempts: AttemptsOption = None,
    run_at: RunAtOption = None,
    expires_after_s: ExpiresOption = None,
    timeout_s: TimeoutOption = None,
    dedup_key: DedupOption = None,
    no_hold: NoHoldOption = False,
    metadata: MetadataOption = None,
    idempotency_key: KeyOption = None,
    wait: WaitOption = None,
    as_json: JsonOption = False,
    tasks: TasksOption = None,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Submit a job and print its id. When this returns, the job is on the disk and will end."""
    asked = {
        "input": read_input(words, file),
        "model": model,
        "lane": lane,
        "priority": priority,
        "max_attempts": max_attempts,
        "run_at": run_at,
        "expires_after_s": expires_after_s,
        "timeout_s": timeout_s,
        "dedup_key": dedup_key,
        "hold": not no_hold,
        "metadata": read_object(metadata, "--metadata"),
    }
    place = reach(url, tenant, config, lambda config: settings_with_tasks(config, tasks))
    if tasks and isinstance(place, AtGateway):
        raise InvalidRequest(f"--tasks is for the database; {place.url} has its own tasks", param="tasks")

    async def submit(backend: Backend) -> int:
        made = await backend.submit(task, asked, key=idempotency_key)
        if made.was_there:
            note(f"It was there already, by its key: {made.id}")
        return await _follow(backend, made.id, wait, as_json=as_json)

    raise typer.Exit(place.run(submit))


async def _follow(backend: Backend, job_id: str, patience_s: float | None, *, as_json: bool) -> int:
    if not as_json:
        show(job_id)
    elif patience_s is None:
        show_json(await backend.job(job_id))
    if patience_s is None:
        return 0
    job = await waiting.wait_for(backend, job_id, patience_s=patience_s)
    return waiting.conclude(job, job_id, patience_s=patience_s, as_json=as_json)
