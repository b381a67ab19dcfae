"""`headgate models`: list, pause, resume."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
import typer
from rich.text import Text

from headgate.calls.models import ModelStatus
from headgate.calls.status import UpstreamStatus
from headgate.cli.options import ConfigOption, JsonOption
from headgate.cli.reaching import LOCAL, AtGateway, reach
from headgate.cli.remote import KEY_VARIABLE, UrlOption, gateway_url, look_there, named_url, shaped
from headgate.cli.running import (
    database_is_missing,
    run,
    run_creating_nothing,
    run_existing,
    settings_to_look,
    user_name,
)
from headgate.cli.screen import note, show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import one_line, when
from headgate.client import AsyncClient, GatewayUnreachable
from headgate.core.errors import Unauthorized
from headgate.core.hold import Condition
from headgate.core.operator_pause import pause_over
from headgate.gateway import Gateway
from headgate.settings import Settings

app = typer.Typer(help="List models and their state; pause and resume them.", no_args_is_help=True)
NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A model, or a family: summary, ollama/*.", show_default=False),
]
_COLUMNS: Final = (
    Column("model", flexible=True),
    Column("upstream", flexible=True),
    Column("state"),
    Column("slots", right=True),
    Column("waiting", right=True),
)
_STYLES: Final = {"open": "green", "paused": "yellow", "throttled": "yellow", "closed": "yellow"}


@app.command("list")
def list_models(as_json: JsonOption = False, url: UrlOption = None, config: ConfigOption = None) -> None:
    """List the models: each upstream's state, busy and all slots, and how many wait.

    With --url all of it comes from the gateway there. Else pauses come from the database, the rest from the gateway
    that serves, if one does.
    """
    place = reach(url, LOCAL, config)
    if isinstance(place, AtGateway):
        models, silence = look_there(place.url, _told), ""
    else:
        models, silence = _looked_up(place.settings, gateway_url(None, config))
    live = not silence
    if as_json:
        show_json({"object": "list", "data": models, "live": live})
    else:
        rows = [row for model in models for row in _rows(model, live=live)]
        show(*lay_out(_COLUMNS, rows, width=stdout().width, note="why"))
    if silence and not as_json:
        note(Text(f"{silence}: only pauses are known, and not how busy it is.", "dim"))
    place.name_it(as_json=as_json)


@app.command("pause")
def pause(name: NameArgument, url: UrlOption = None, config: ConfigOption = None) -> None:
    """Pause a model: its calls are refused, its jobs wait, until it is resumed. What is being served ends."""
    if (there := named_url(url, config)) is not None:
        told = look_there(there, lambda client: client.pause_model(name))
    else:
        told = run(settings_to_look(config), lambda gateway: gateway.models.pause(name, by=user_name()))
    words = when(told.since, datetime.now(UTC))
    show(f"{one_line(told.model)} is paused by {one_line(told.by)} since {words}; every gateway obeys in 2 s")


@app.command("resume")
def resume(name: NameArgument, url: UrlOption = None, config: ConfigOption = None) -> None:
    """Let a paused model go on."""
    if (there := named_url(url, config)) is not None:
        look_there(there, lambda client: client.resume_model(name))
    elif not run_existing(settings_to_look(config), lambda gateway: gateway.models.resume(name)):
        show(f"{one_line(name)} was not paused")
        return
    show(f"{one_line(name)} goes on; every gateway obeys in 2 s")


async def _told(client: AsyncClient) -> Sequence[ModelStatus]:
    """All that a gateway tells. Who paused a model is not among it."""
    gates = _by_model(await client.status())
    names = dict.fromkeys((*await client.models(), *gates))
    return [ModelStatus(model=name, paused=None, upstreams=tuple(gates.get(name, ()))) for name in names]


def _looked_up(settings: Settings, url: str) -> tuple[Sequence[ModelStatus], str]:
    """From the database, and from the gateway that listens where the settings say; why that one said nothing, if so."""
    missing = database_is_missing(settings)

    async def listed(gateway: Gateway) -> Sequence[ModelStatus]:
        return gateway.models.known() if missing else await gateway.models.list()

    models = run_creating_nothing(settings, listed)
    try:
        status = look_there(url, lambda client: client.status())
    except GatewayUnreachable:
        return models, f"Nothing answers at {url}"
    except Unauthorized:
        return models, f"The gateway at {url} needs a key in {KEY_VARIABLE}"
    return list(_joined(models, _by_model(status))), ""


def _by_model(status: Mapping[str, Any]) -> Mapping[str, list[UpstreamStatus]]:
    gates: dict[str, list[UpstreamStatus]] = {}
    for gate in shaped(status["upstreams"], list[UpstreamStatus]):
        gates.setdefault(gate.model, []).append(gate)
    return gates


def _joined(
    models: Sequence[ModelStatus], gates: Mapping[str, list[UpstreamStatus]]
) -> Iterator[ModelStatus]:
    for model in models:
        yield msgspec.structs.replace(model, upstreams=tuple(gates.get(model.model, ())))
    known = {model.model for model in models}
    pauses = {model.paused.model: model.paused for model in models if model.paused is not None}
    for name, theirs in gates.items():
        if name not in known:
            yield ModelStatus(model=name, paused=pause_over(pauses, name), upstreams=tuple(theirs))


def _rows(model: ModelStatus, *, live: bool) -> Iterator[Row]:
    paused = _paused(model)
    if not model.upstreams:
        yield _row(model.model, "-", paused or ("open", ""), "-", "-")
    for number, gate in enumerate(model.upstreams):
        busy = gate.total_slots - gate.available_slots
        yield _row(
            "" if number else model.model,
            gate.upstream,
            paused or _state(gate),
            f"{busy}/{gate.total_slots}" if live else str(gate.total_slots),
            str(gate.rt_queue + gate.be_queue) if live else "-",
        )
        paused = paused and ("paused", "")


def _row(model: str, upstream: str, state: tuple[str, str], slots: str, waiting: str) -> Row:
    word, why = state
    cells = (
        Text(one_line(model)),
        Text(one_line(upstream)),
        Text(word, _STYLES.get(word, "red")),
        Text(slots),
        Text(waiting),
    )
    return Row(cells, Text(one_line(why), "dim") if why else None)


def _paused(model: ModelStatus) -> tuple[str, str] | None:
    if model.paused is None:
        return None
    return "paused", f"by {model.paused.by} since {when(model.paused.since, datetime.now(UTC))}"


def _state(gate: UpstreamStatus) -> tuple[str, str]:
    """A word, and where it needs one its reason."""
    if gate.stopped:
        return "paused", ""
    if gate.condition is Condition.HELD:
        return "held", "misconfigured: check its key, model name and permissions"
    if gate.condition is Condition.OPEN:
        return "breaker open", "it keeps failing; calls wait until a probe is answered"
    if gate.closed:
        return "throttled", f"it refused too many calls in a row; the next probe goes in {gate.pause_s:.0f} s"
    if not gate.accepting:
        return "closed", "full, or going away"
    return "open", gate.limit
