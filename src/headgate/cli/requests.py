"""`headgate requests`: what became of the last calls that a gateway served."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer
from rich.text import Text

from headgate.cli.options import ConfigOption, JsonOption, LimitOption, ModelFilter
from headgate.cli.reaching import AtGateway
from headgate.cli.remote import UrlOption, first, gateway_url, look_there, shaped
from headgate.cli.screen import note, show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import one_line, since, when
from headgate.observe.recent import AttemptStory, RequestStory, Status

app = typer.Typer(help="List and show the latest calls of a running gateway.", no_args_is_help=True)
IdArgument = Annotated[
    str,
    typer.Argument(metavar="ID", help="The x-request-id of the answer, or a job's id.", show_default=False),
]
StatusFilter = Annotated[Status | None, typer.Option("--status", help="Only those that ended so.")]
AfterOption = Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this one.")]
_LABEL: Final = 10
_STYLES: Final = {
    Status.OK: "green",
    Status.FAILED: "red",
    Status.REFUSED: "magenta",
    Status.CANCELLED: "yellow",
}
_COLUMNS: Final = (
    Column("id"),
    Column("status"),
    Column("model", flexible=True),
    Column("upstream", flexible=True),
    Column("calls", right=True),
    Column("took", right=True),
    Column("age", right=True),
)


@app.command("show")
def show_request(
    request_id: IdArgument, as_json: JsonOption = False, url: UrlOption = None, config: ConfigOption = None
) -> None:
    """Show a call, or all calls made for a request or a job.

    It lists attempts, waits and refusals one by one, tokens, cost and how the call ended.
    """
    told = look_there(gateway_url(url, config), lambda client: client.request(request_id))
    story = shaped(told, RequestStory)
    if as_json:
        show_json(told)
    else:
        show(*_lines(story))


@app.command("list")
def list_requests(
    *,
    model: ModelFilter = None,
    status: StatusFilter = None,
    limit: LimitOption = 20,
    after: AfterOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
) -> None:
    """List the last calls, the latest first. Each process remembers its own 10,000."""
    there = gateway_url(url, config)
    told, more = look_there(
        there,
        lambda client: first(
            client.requests(model=model, status=status, page_size=limit, after=after), limit
        ),
    )
    stories = shaped(told, list[RequestStory])
    last_id = stories[-1].id if stories else None
    if as_json:
        show_json({"object": "list", "data": told, "has_more": more, "last_id": last_id})
        return
    if not told:
        show("No calls match." if model or status or after else "No calls yet.")
    else:
        _show_table(stories)
    if more:
        note(Text(f"There are more: add --after {one_line(str(last_id))}", "dim"))
    AtGateway(there).name_it(as_json=as_json)


def _show_table(found: Sequence[RequestStory]) -> None:
    now = datetime.now(UTC)
    rows = [_row(story, now) for story in found]
    show(*lay_out(_COLUMNS, rows, width=stdout().width, note="error"))


def _row(story: RequestStory, now: datetime) -> Row:
    cells = (
        Text(one_line(story.id)),
        Text(str(story.status), _STYLES[story.status]),
        Text(one_line(story.model)),
        Text(one_line(story.upstream or "-")),
        Text(str(len(story.attempts))),
        Text("-" if story.latency_ms is None else _time(story.latency_ms)),
        Text(since(story.ended_at, now)),
    )
    return Row(cells, Text(one_line(story.error), "dim") if story.error else None)


def _lines(story: RequestStory) -> Iterator[Text]:
    yield Text(one_line(story.id), "bold")
    for label, words in _facts(story):
        yield Text.assemble((label.ljust(_LABEL), "dim"), words)
    if story.refusals:
        yield Text("\nrefused by", "dim")
    for refusal in story.refusals:
        yield Text(f"  {one_line(refusal.upstream)}: {one_line(refusal.reason)}")
    if story.attempts:
        yield Text("\nattempts", "dim")
    for attempt in story.attempts:
        yield _attempt(attempt)


def _facts(story: RequestStory) -> Iterator[tuple[str, Text]]:
    status = Text(str(story.status), _STYLES[story.status])
    yield "status", status.append(f", {one_line(story.error)}") if story.error else status
    yield "ended", Text(when(story.ended_at, datetime.now(UTC)))
    yield "model", Text(one_line(story.model))
    yield "upstream", Text(one_line(story.upstream or "-"))
    yield "lane", Text(str(story.lane))
    yield "tenant", Text(one_line(story.tenant))
    if story.origin is not None:
        yield "made for", Text(one_line(story.origin))
    if story.calls:
        yield "calls", Text(f"{len(story.calls)} made for it; --json lists their ids")
    if story.agent_id is not None:
        yield "agent", Text(one_line(story.agent_id))
    if story.latency_ms is not None and story.queue_ms is not None:
        yield "took", Text(f"{_time(story.latency_ms)}, {_time(story.queue_ms)} of it in the queue")
    if story.first_token_ms is not None:
        yield "first", Text(f"content after {_time(story.first_token_ms)}")
    if story.usage is not None:
        guess = ", estimated" if story.usage.estimated else ""
        yield "tokens", Text(f"{story.usage.input_tokens:,} in, {story.usage.output_tokens:,} out{guess}")
    if story.cost_usd is not None:
        yield "cost", Text(f"${story.cost_usd:.6f}")


def _attempt(attempt: AttemptStory) -> Text:
    words = Text(f"  {attempt.attempt}. {one_line(attempt.upstream)}: ")
    if attempt.error is None:
        words.append("ok", "green")
    else:
        words.append(one_line(attempt.error), "red")
    words.append(f" after {_time(attempt.duration_ms)}")
    return words.append(f", then slept {_time(attempt.wait_ms)}") if attempt.wait_ms is not None else words


def _time(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 1000 else f"{milliseconds:.0f} ms"
