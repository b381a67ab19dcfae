"""`headgate bookmark`: add, list, show, retry, delete, import, export. What is added goes through the outbox, so no
gateway need be there.
"""

import enum
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from headgate.apps.bookmarks.address import canonical
from headgate.apps.bookmarks.exchange import netscape, read_file
from headgate.cli.options import ConfigOption, JsonOption
from headgate.cli.outbox import FileOption, exit_code, open_outbox, tell_flushed
from headgate.cli.reaching import AtGateway
from headgate.cli.remote import UrlOption, first, gateway_url, run_there
from headgate.cli.screen import note, show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import count_of, one_line, printable, readable_json, since, when
from headgate.client import AsyncClient, Outbox
from headgate.client.bookmarks import Bookmark
from headgate.core.errors import InvalidRequest, StateConflict

app = typer.Typer(
    help="Save, list, import and export pages that a model describes.",
    no_args_is_help=True,
)
PAGE_SIZE: Final = 100
LARGEST_FILE_BYTES: Final = 100 * 2**20
_LABEL: Final = 10
_WRONG: Final = 2
_STYLES: Final = {"done": "green", "failed": "red", "retrying": "yellow"}
_COLUMNS: Final = (Column("id"), Column("status"), Column("age", right=True), Column("title", flexible=True))


class Format(enum.StrEnum):
    """What a file is written as."""

    HTML = "html"
    JSON = "json"


class Status(enum.StrEnum):
    """What a bookmark may be, as far as a gateway knows."""

    PROCESSING = "processing"
    RETRYING = "retrying"
    DONE = "done"
    FAILED = "failed"


AddressArgument = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="The page to save.", show_default=False)
]
TitleOption = Annotated[str | None, typer.Option("--title", help="Instead of the one a model would write.")]
TagOption = Annotated[list[str] | None, typer.Option("--tag", help="A tag of your own; may be repeated.")]
SearchOption = Annotated[
    str | None, typer.Option("--search", metavar="TEXT", help="Only those that hold it.")
]
StatusOption = Annotated[Status | None, typer.Option("--status", help="Only those in this state.")]
OnlyTagOption = Annotated[str | None, typer.Option("--tag", help="Only those with this tag.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100_000, help="How many at most.")]
ImportArgument = Annotated[
    Path, typer.Argument(metavar="PATH", help="A browser's bookmarks (HTML), or JSON.", show_default=False)
]
BookmarkArgument = Annotated[
    str, typer.Argument(metavar="BOOKMARK", help="The bookmark's id.", show_default=False)
]
BookmarksArgument = Annotated[
    list[str], typer.Argument(metavar="BOOKMARK", help="A bookmark's id; may be several.", show_default=False)
]
FormatOption = Annotated[Format, typer.Option("--format", help="HTML as browsers import it, or JSON.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="PATH", help="Where to; default: stdout.")
]


@app.command("add")
def add(
    address: AddressArgument,
    *,
    title: TitleOption = None,
    tag: TagOption = None,
    file: FileOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a bookmark down, and send it if there is a gateway.

    Exit code 0: it is saved; 1: it was refused; 4: it is on the disk and waits for the gateway.
    """
    canonical(address)
    with open_outbox(file, config) as outbox:
        outbox.add_bookmark(address, title=title, tags=tag or None, created_from="cli")
        _flush(outbox, gateway_url(url, config))


@app.command("list")
def list_bookmarks(
    search: SearchOption = None,
    status: StatusOption = None,
    tag: OnlyTagOption = None,
    limit: LimitOption = 20,
    *,
    as_json: JsonOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
) -> None:
    """List bookmarks, newest first."""
    filters: dict[str, Any] = {"q": search, "status": status, "tag": tag}

    async def look(client: AsyncClient) -> tuple[Sequence[Bookmark], bool]:
        return await first(client.bookmarks.list(page_size=min(limit, PAGE_SIZE), **filters), limit)

    there = gateway_url(url, config)
    found, more = run_there(there, look)
    if as_json:
        last_id = found[-1]["id"] if found else None
        show_json({"object": "list", "data": found, "has_more": more, "last_id": last_id})
    elif found:
        now = datetime.now(UTC)
        rows = [_row(one, now) for one in found]
        show(*lay_out(_COLUMNS, rows, width=stdout().width, note="about"))
    else:
        show("No bookmarks match." if any(filters.values()) else "There are no bookmarks.")
    AtGateway(there).name_it(as_json=as_json)


@app.command("show")
def show_one(
    bookmark_id: BookmarkArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    config: ConfigOption = None,
) -> None:
    """Show all that is known of a bookmark."""
    found = run_there(gateway_url(url, config), lambda client: client.bookmarks.get(bookmark_id))
    if as_json:
        show_json(found)
        return
    show(Text(one_line(found["id"]), "bold"))
    for label, value in _facts(found, datetime.now(UTC)):
        show(Text.assemble((label.ljust(_LABEL), "dim"), value))


@app.command("retry")
def retry(bookmark_ids: BookmarksArgument, url: UrlOption = None, config: ConfigOption = None) -> None:
    """Have bookmarks processed again: failed ones, and those that wait for their next attempt.

    A bookmark that a ceiling holds stays held; the command says which ceiling. Exit code 2 if one cannot be processed.
    """
    _each(
        bookmark_ids, url, config, "is processed again", lambda client, one: client.bookmarks.reprocess(one)
    )


@app.command("delete")
def delete(bookmark_ids: BookmarksArgument, url: UrlOption = None, config: ConfigOption = None) -> None:
    """Delete bookmarks. What is being processed is stopped first. Exit code 2 if one cannot be deleted."""
    _each(bookmark_ids, url, config, "is deleted", lambda client, one: client.bookmarks.delete(one))


@app.command("import")
def import_file(
    path: ImportArgument, file: FileOption = None, url: UrlOption = None, config: ConfigOption = None
) -> None:
    """Write all bookmarks of a file down, and send them if there is a gateway.

    What is there already stays as it is: importing a file twice changes nothing. Exit codes as of `add`.
    """
    found, left_out = read_file(_content(path))
    if left_out:
        note(f"{count_of(left_out, 'link')} left out: only http:// and https:// addresses can be saved.")
    with open_outbox(file, config) as outbox:
        outbox.add_bookmarks(
            {"url": one.url, "title": one.title, "tags": one.tags or None, "created_from": "import"}
            for one in found
        )
        note(f"{count_of(len(found), 'bookmark')} written down.")
        _flush(outbox, gateway_url(url, config))


@app.command("export")
def export(
    form: FormatOption = Format.HTML,
    output: OutputOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
) -> None:
    """Write all bookmarks into a file."""

    async def look(client: AsyncClient) -> Sequence[Bookmark]:
        return [one async for one in client.bookmarks.list(page_size=PAGE_SIZE)]

    found = run_there(gateway_url(url, config), look)
    if form is Format.HTML:
        _write(output, netscape(found))
    else:
        _write(output, [readable_json(found), "\n"])
    note(f"{count_of(len(found), 'bookmark')} exported.")


def _each(
    ids: Sequence[str],
    url: str | None,
    config: Path | None,
    done: str,
    act: Callable[[AsyncClient, str], Awaitable[object]],
) -> None:
    """One after the other; one that cannot be done does not keep the others from it."""

    async def each(client: AsyncClient) -> int:
        code = 0
        for one in dict.fromkeys(ids):
            try:
                await act(client, one)
                show(f"{one_line(one)} {done}")
            except (InvalidRequest, StateConflict) as error:
                note(f"headgate: {printable(str(error))}")
                code = _WRONG
        return code

    raise typer.Exit(run_there(gateway_url(url, config), each))


def _facts(one: Bookmark, now: datetime) -> Iterator[tuple[str, Text]]:
    status = one["status"]
    yield "address", Text(one_line(one["url"]))
    if one["title"]:
        yield "title", Text(one_line(one["title"]))
    yield "status", Text(one_line(status), _STYLES.get(status, "cyan"))
    if one["error_message"]:
        yield "problem", Text(one_line(one["error_message"]))
    if one["waiting_until"]:
        yield "waits", Text(f"until {when(datetime.fromisoformat(one['waiting_until']), now)}")
    for label in ("summary", "category", "language"):
        if one[label]:
            yield label, Text(one_line(one[label]))
    if one["tags"]:
        yield "tags", Text(one_line(", ".join(one["tags"])))
    yield "attempts", Text(str(one["attempts"]))
    if one["job_id"]:
        yield "job", Text(one_line(one["job_id"]))
    if one["source_hint"]:
        yield "hint", Text(one_line(one["source_hint"]))
    if one["created_from"]:
        yield "from", Text(one_line(one["created_from"]))
    yield "saved", Text(when(datetime.fromisoformat(one["created_at"]), now))
    yield "changed", Text(when(datetime.fromisoformat(one["updated_at"]), now))


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be read: {error.strerror}", param="path") from None
    if len(content) > LARGEST_FILE_BYTES:
        raise InvalidRequest(
            f"{path} has more than {LARGEST_FILE_BYTES // 2**20} MiB: import it in parts", param="path"
        )
    return content


def _flush(outbox: Outbox, url: str) -> None:
    flushed = run_there(url, outbox.flush)
    tell_flushed(flushed)
    raise typer.Exit(exit_code(flushed))


def _write(output: Path | None, pieces: Iterable[str]) -> None:
    if output is None:
        sys.stdout.writelines(pieces)
        return
    with output.open("w", encoding="utf-8") as file:
        file.writelines(pieces)


def _row(one: Bookmark, now: datetime) -> Row:
    cells = (
        Text(one_line(one["id"])),
        Text(one_line(one["status"]), _STYLES.get(one["status"], "cyan")),
        Text(since(datetime.fromisoformat(one["created_at"]), now)),
        Text(one_line(one["title"] or one["url"])),
    )
    about = one["error_message"] or one["summary"]
    return Row(cells, Text(one_line(about), "dim") if about else None)
