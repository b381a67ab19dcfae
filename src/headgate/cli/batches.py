"""`headgate batches`: create, list, show, wait, cancel, retry."""

import math
from pathlib import Path
from typing import Annotated

import typer

from headgate.cli import batch_screen
from headgate.cli.inputs import read_object
from headgate.cli.options import ConfigOption, JsonOption, TenantOption, read_seconds
from headgate.cli.reaching import reach
from headgate.cli.remote import UrlOption
from headgate.cli.screen import note, show, show_json
from headgate.core.batch_order import TASKS
from headgate.core.errors import InvalidRequest

app = typer.Typer(help="Run files of requests as batches, one job per line.", no_args_is_help=True)
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A JSONL file of requests.", show_default=False)
]
BatchArgument = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.", show_default=False)]
EndpointOption = Annotated[str, typer.Option("--endpoint", help=f"What the lines ask: {' or '.join(TASKS)}.")]
WindowOption = Annotated[
    str, typer.Option("--window", metavar="TIME", help="Lines not done by then expire: 24h, 90m.")
]
MetadataOption = Annotated[
    str | None, typer.Option("--metadata", metavar="JSON", help="Up to 16 pairs of text kept with the batch.")
]
KeyOption = Annotated[
    str | None,
    typer.Option("--idempotency-key", metavar="KEY", help="The same retry again gives the same batch."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", parser=read_seconds, metavar="SECONDS", help="How long; default: as long as it takes."
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, max=100, help="How many at most.")]
AfterOption = Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this batch.")]


@app.command("create")
def create(
    file: FileArgument,
    endpoint: EndpointOption = "/v1/chat/completions",
    window: WindowOption = "24h",
    metadata: MetadataOption = None,
    *,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Keep a file of requests, run its lines and print the batch's id."""
    if not file.is_file():
        raise InvalidRequest(f"there is no file {str(file)!r}", param="file")
    pairs = read_object(metadata, "--metadata")
    batch = reach(url, tenant, config).run(
        lambda backend: backend.create_batch(file, endpoint=endpoint, window=window, metadata=pairs)
    )
    if as_json:
        show_json(batch)
    else:
        show(batch.id)


@app.command("list")
def list_batches(
    limit: LimitOption = 20,
    after: AfterOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """List batches, newest first."""
    place = reach(url, tenant, config)
    found, more = place.page(lambda backend: backend.batches(limit=limit, after=after))
    batch_screen.show_page(found, more=more, as_json=as_json)
    place.name_it(as_json=as_json)


@app.command("show")
def show_one(
    batch_id: BatchArgument,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Show how a batch stands, what is wrong with its lines, and where its files are."""
    place = reach(url, tenant, config)
    batch = place.run_existing(lambda backend: backend.batch(batch_id))
    if as_json:
        show_json(batch)
    else:
        batch_screen.show_batch(batch, place.file)


@app.command("wait")
def wait(
    batch_id: BatchArgument,
    timeout: TimeoutOption = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Wait until a batch has ended and show what came of it.

    Exit code 0: completed; 1: failed, expired or cancelled; 3: not over in time.
    """
    patience_s = math.inf if timeout is None else timeout
    place = reach(url, tenant, config)
    batch = place.run_existing(
        lambda backend: batch_screen.wait_for(backend, batch_id, patience_s=patience_s)
    )
    raise typer.Exit(
        batch_screen.conclude(batch, batch_id, place.file, patience_s=patience_s, as_json=as_json)
    )


@app.command("cancel")
def cancel(
    batch_id: BatchArgument,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Cancel a batch: lines that have not begun never will. What has ended by then is in its files."""
    batch = reach(url, tenant, config).run_existing(lambda backend: backend.cancel_batch(batch_id))
    show(f"{batch_id} is {batch.status}")


@app.command("retry")
def retry(
    batch_id: BatchArgument,
    idempotency_key: KeyOption = None,
    *,
    as_json: JsonOption = False,
    url: UrlOption = None,
    tenant: TenantOption = "local",
    config: ConfigOption = None,
) -> None:
    """Run the failed lines of a batch again, as a new batch, and print its id."""
    place = reach(url, tenant, config)
    made = place.run_existing(lambda backend: backend.retry_batch(batch_id, key=idempotency_key))
    if made.was_there:
        note(f"It was there already, by its key: {made.id}")
    if as_json:
        show_json(place.run_existing(lambda backend: backend.batch(made.id)))
    else:
        show(made.id)
