"""`headgate outbox`: add, list, flush, retry, discard. Adding works without any gateway."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from headgate import wiring
from headgate.cli.inputs import read_input, read_object
from headgate.cli.options import ConfigOption, JsonOption
from headgate.cli.remote import UrlOption, gateway_url, run_there
from headgate.cli.screen import note, show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import count_of, one_line, printable, since
from headgate.client import Entry, Flushed, Outbox
from headgate.core.errors import InvalidRequest
from headgate.core.outbox import EntryState

VARIABLE: Final = "HEADGATE_OUTBOX"
UNSENT: Final = 4
"""Something still waits: the same command may send it later."""
FAILED: Final = 1
app = typer.Typer(help="Keep jobs on disk and send them when the gateway is up.", no_args_is_help=True)
TaskArgument = Annotated[str, typer.Argument(metavar="TASK", help="The task's name.", show_default=False)]
InputArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT",
        help="The input as JSON; @FILE reads a file, - stdin; none is null.",
        show_default=False,
    ),
]
EntryArgument = Annotated[int, typer.Argument(metavar="ID", help="The entry's number.", show_default=False)]
StreamOption = Annotated[
    str, typer.Option("--stream", help="Entries of one stream are sent in their order.", show_default=True)
]
OptionsOption = Annotated[
    str | None,
    typer.Option(
        "--options", metavar="JSON", help="More fields of the job: an object with priority, model, …"
    ),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", metavar="FILE", help="The outbox; default HEADGATE_OUTBOX, else outbox.db in data_dir."
    ),
]
StateFilter = Annotated[EntryState | None, typer.Option("--state", help="Only those in this state.")]
StreamFilter = Annotated[str | None, typer.Option("--stream", help="Only those of this stream.")]
_STYLES: Final = {EntryState.WAITING: "cyan", EntryState.SENT: "green", EntryState.FAILED: "red"}
_COLUMNS: Final = (
    Column("id", right=True),
    Column("stream", flexible=True),
    Column("state"),
    Column("tries", right=True),
    Column("age", right=True),
    Column("job"),
)


@app.command("add")
def add(
    task: TaskArgument,
    words: InputArgument = None,
    *,
    stream: StreamOption = "default",
    options: OptionsOption = None,
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a job down and print its number. When this returns, it is on the disk and will be sent once."""
    given = read_input(None, Path(words[1:])) if words and words.startswith("@") else read_input(words, None)
    fields: dict[str, Any] = read_object(options, "--options") or {}
    with open_outbox(file, config) as outbox:
        show(str(outbox.add(task, given, stream=stream, **fields).id))


@app.command("list")
def list_entries(
    state: StateFilter = None,
    stream: StreamFilter = None,
    as_json: JsonOption = False,
    file: FileOption = None,
    config: ConfigOption = None,
) -> None:
    """List what is in the outbox, in its order. What was sent is kept for a week."""
    path = _path(file, config)
    entries: Sequence[Entry] = ()
    if path.exists():
        with Outbox(path) as outbox:
            entries = outbox.list(state=state, stream=stream)
    if as_json:
        last_id = entries[-1].id if entries else None
        shown = [_shown(entry) for entry in entries]
        show_json({"object": "list", "data": shown, "has_more": False, "last_id": last_id})
    elif entries:
        _show_table(entries)
    elif not path.exists():
        show(f"The outbox is empty: {path} does not exist.")
    else:
        show("No entries match." if state or stream else "The outbox is empty.")
    if path.exists() and not as_json:
        note(Text(f"Read from {path}", "dim"))


@app.command("flush")
def flush(
    url: UrlOption = None, as_json: JsonOption = False, file: FileOption = None, config: ConfigOption = None
) -> None:
    """Send what waits.

    Exit code 0: all is sent; 1: some failed and need you; 4: the gateway is full or away, or another process is
    sending: the rest waits.
    """
    there, path = gateway_url(url, config), _path(file, config)
    if path.exists():
        with Outbox(path) as outbox:
            flushed = run_there(there, outbox.flush)
    else:
        flushed = Flushed()
    if as_json:
        show_json(flushed)
    elif path.exists():
        tell_flushed(flushed)
    else:
        show(f"Nothing to send: {path} does not exist.")
    raise typer.Exit(exit_code(flushed))


@app.command("retry")
def retry(entry_id: EntryArgument, file: FileOption = None, config: ConfigOption = None) -> None:
    """Let a failed entry wait again, in its old place and under its old key."""
    with _opened(file, config) as outbox:
        entry = outbox.retry(entry_id)
    show(f"{entry.id} waits again. Send it: headgate outbox flush")


@app.command("discard")
def discard(entry_id: EntryArgument, file: FileOption = None, config: ConfigOption = None) -> None:
    """Remove an entry that is not sent."""
    with _opened(file, config) as outbox:
        entry = outbox.discard(entry_id)
    show(f"{entry.id} is discarded")
    if entry.standing.doubt_since is not None:
        note("It was sent at least once without an answer: the gateway may have it all the same.")


def open_outbox(file: Path | None, config: Path | None) -> Outbox:
    """For what adds to it. It is created where it is missing."""
    return Outbox(_named(file) or _usual(config))


def _opened(file: Path | None, config: Path | None) -> Outbox:
    path = _path(file, config)
    if not path.exists():
        raise _missing(path)
    return Outbox(path)


def _path(file: Path | None, config: Path | None) -> Path:
    """Where the outbox is, or would be. A name that leads nowhere is a mistake."""
    named = _named(file)
    if named is not None and not named.exists():
        raise _missing(named)
    return (named or _usual(config)).absolute()


def _missing(path: Path) -> InvalidRequest:
    return InvalidRequest(f"there is no outbox {path}; headgate outbox add creates one", param="file")


def _usual(config: Path | None) -> Path:
    return Path(wiring.read_settings(config).data_dir) / "outbox.db"


def _named(file: Path | None) -> Path | None:
    if file is not None:
        return file
    return Path(found) if (found := os.environ.get(VARIABLE)) else None


def exit_code(flushed: Flushed) -> int:
    if flushed.busy or flushed.waiting:
        return UNSENT
    return FAILED if flushed.failed or flushed.failed_earlier else 0


def tell_flushed(flushed: Flushed) -> None:
    if flushed.busy:
        note(
            f"Another process is sending from this outbox; {count_of(flushed.waiting, 'entry', 'entries')} wait."
        )
        return
    earlier = f", {flushed.failed_earlier} failed earlier" if flushed.failed_earlier else ""
    show(f"{flushed.sent} sent, {flushed.failed} failed, {flushed.waiting} waiting{earlier}")
    if flushed.trouble is not None:
        note(printable(f"{flushed.trouble}\nNothing is lost: the rest waits for the next flush."))
    if flushed.failed or flushed.failed_earlier:
        note("See why: headgate outbox list --state failed")


def _shown(entry: Entry) -> dict[str, Any]:
    standing = msgspec.structs.asdict(entry.standing)
    return {
        "id": entry.id,
        "stream": entry.stream,
        "path": entry.path,
        "body": entry.body,
        "key": entry.key,
        **standing,
        "doubt_since": None if entry.standing.doubt_since is None else _moment(entry.standing.doubt_since),
        "created_at": _moment(entry.created_at),
        "changed_at": _moment(entry.changed_at),
    }


def _moment(epoch_s: float) -> datetime:
    return datetime.fromtimestamp(epoch_s, UTC)


def _show_table(entries: Sequence[Entry]) -> None:
    now = datetime.now(UTC)
    show(*lay_out(_COLUMNS, [_row(entry, now) for entry in entries], width=stdout().width, note="reason"))


def _row(entry: Entry, now: datetime) -> Row:
    standing = entry.standing
    cells = (
        Text(str(entry.id)),
        Text(one_line(entry.stream)),
        Text(str(standing.state), _STYLES[standing.state]),
        Text(str(standing.failures)),
        Text(since(_moment(entry.created_at), now)),
        Text(one_line(standing.server_id or "-")),
    )
    return Row(cells, Text(one_line(standing.reason), "dim") if standing.reason else None)
