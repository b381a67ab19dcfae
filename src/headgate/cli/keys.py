"""`headgate keys`: create, list, revoke."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from headgate.cli.options import ConfigOption, JsonOption, When, read_future
from headgate.cli.reaching import InDatabase
from headgate.cli.remote import KEY_VARIABLE
from headgate.cli.running import database_is_missing, run, run_existing, settings_to_look
from headgate.cli.screen import note, show, show_json, stdout
from headgate.cli.tables import Column, Row, lay_out
from headgate.cli.words import one_line, since, when
from headgate.core.access import AccessKey, AccessState, AccessTerms, IssuedKey, Role
from headgate.core.call import Lane
from headgate.gateway import Gateway
from headgate.machine.ids import random_id
from headgate.runner.access_keys import AccessKeys

app = typer.Typer(help="Create, list and revoke the keys of callers over HTTP.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What people call it.", show_default=False)]
TenantOption = Annotated[str, typer.Option("--tenant", help="Whose requests these are.")]
RoleOption = Annotated[
    Role,
    typer.Option("--role", help="call: call models; read: see the dashboard; operate: everything."),
]
ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--models", metavar="PATTERN", help="Only these: summary, ollama/*; may be repeated; default: all."
    ),
]
LaneOption = Annotated[
    Lane, typer.Option("--lane", help="Where its requests queue unless they say otherwise.")
]
RpmOption = Annotated[int | None, typer.Option("--rpm", min=1, help="Requests in a minute, at most.")]
TpmOption = Annotated[int | None, typer.Option("--tpm", min=1, help="Tokens in a minute, at most.")]
ParallelOption = Annotated[int | None, typer.Option("--parallel", min=1, help="Requests at a time, at most.")]
ExpiresOption = Annotated[
    When | None,
    typer.Option(
        "--expires", parser=read_future, metavar="WHEN", help="A date, or how long from now: 12h, 90d."
    ),
]
KeyArgument = Annotated[
    str,
    typer.Argument(metavar="KEY", help="Its id, its name, or its last four characters.", show_default=False),
]
AnyTenantOption = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's; default: all.")]
_MAY: Final = {
    Role.CALL: "may call models, submit jobs and see its own; it opens neither the whole dashboard nor commands"
    " such as headgate models list",
    Role.READ: "may see the dashboard and what commands list; it cannot call models or change anything",
    Role.OPERATE: f"may do everything: log in to the dashboard with it; commands take it from {KEY_VARIABLE}",
}
_STYLES: Final = {AccessState.ACTIVE: "green", AccessState.EXPIRED: "yellow", AccessState.REVOKED: "dim"}
_COLUMNS: Final = (
    Column("id"),
    Column("name", flexible=True),
    Column("ends in"),
    Column("state"),
    Column("role"),
    Column("tenant", flexible=True),
    Column("age", right=True),
)


@app.command("create")
def create(
    name: NameArgument,
    *,
    tenant: TenantOption = "local",
    role: RoleOption = Role.CALL,
    models: ModelsOption = None,
    lane: LaneOption = Lane.INTERACTIVE,
    rpm: RpmOption = None,
    tpm: TpmOption = None,
    parallel: ParallelOption = None,
    expires: ExpiresOption = None,
    config: ConfigOption = None,
) -> None:
    """Create a key and print it, once."""
    terms = AccessTerms(
        name=name,
        tenant=tenant,
        role=role,
        models=tuple(part.strip() for words in models or () for part in words.split(",")),
        lane=lane,
        requests_per_minute=rpm,
        tokens_per_minute=tpm,
        parallel=parallel,
    )

    async def make(gateway: Gateway) -> tuple[IssuedKey, Sequence[AccessKey], datetime]:
        expires_at = None if expires is None else expires.at(await _now(gateway))
        issued = await _keys(gateway).create(msgspec.structs.replace(terms, expires_at=expires_at))
        return issued, *await _listed(gateway)

    settings = settings_to_look(config)
    issued, everyone, now = run(settings, make)
    key = issued.kept.key
    note(
        Text(
            f"{key.id} {one_line(key.name)}: this is the key. It is not kept and cannot be shown again.\n"
            f"Its role, {key.role}, {_MAY[key.role]}.\n"
            f"Its limits: {_told_limits(key)}.\n"
            f"The limits of its tenant, {one_line(key.tenant)}: while others wait, half of an upstream's slots and queue;"
            f" {settings.limits.tenant_bytes / 1e6:,.1f} MB stored (limits.tenant_bytes).",
            "dim",
        )
    )
    if warning := _locked_out(everyone, now):
        note(Text(warning, "yellow"))
    show(issued.text)


@app.command("list")
def list_keys(
    as_json: JsonOption = False, tenant: AnyTenantOption = None, config: ConfigOption = None
) -> None:
    """List the keys, newest first; of each only its last four characters."""
    place = InDatabase(settings_to_look(config))
    found: Sequence[AccessKey] = ()
    now = datetime.now(UTC)
    if not database_is_missing(place.settings):
        found, now = run_existing(place.settings, lambda gateway: _listed(gateway, tenant))
    if as_json:
        last_id = found[-1].id if found else None
        show_json({"object": "list", "data": found, "has_more": False, "last_id": last_id})
    elif found:
        _show_table(found, now)
    elif tenant is not None:
        show("No keys match.")
    else:
        show(
            "There are no keys: only this machine may connect. The first one is for you:"
            " headgate keys create NAME --role operate"
        )
    place.name_it(as_json=as_json)


@app.command("revoke")
def revoke(
    word: KeyArgument,
    tenant: AnyTenantOption = None,
    config: ConfigOption = None,
) -> None:
    """Revoke a key: within 5 seconds no gateway accepts it any more."""
    key = run_existing(settings_to_look(config), lambda gateway: _keys(gateway).revoke(word, tenant=tenant))
    show(f"{key.id} ({one_line(key.name)}, …{key.last_four}) is revoked")


def _locked_out(keys: Sequence[AccessKey], now: datetime) -> str:
    """What to do where no key may operate; nothing where one may."""
    if any(key.role is Role.OPERATE and key.state(now) is AccessState.ACTIVE for key in keys):
        return ""
    first = "This is the first key: from now on nothing gets in without one. " if len(keys) == 1 else ""
    return f"{first}No key may operate this gateway. Make one: headgate keys create NAME --role operate"


def _keys(gateway: Gateway) -> AccessKeys:
    return AccessKeys(gateway.durable, random_id)


async def _now(gateway: Gateway) -> datetime:
    """By the clock of the database, which is known once it is open."""
    await gateway.durable.start()
    return gateway.durable.clock.utc()


async def _listed(gateway: Gateway, tenant: str | None = None) -> tuple[Sequence[AccessKey], datetime]:
    """The keys, and the time at which they are in the states they are."""
    return await _keys(gateway).list(tenant=tenant), await _now(gateway)


def _show_table(keys: Sequence[AccessKey], now: datetime) -> None:
    rows = [_row(key, now) for key in keys]
    show(*lay_out(_COLUMNS, rows, width=stdout().width, note="terms"))


def _row(key: AccessKey, now: datetime) -> Row:
    state = key.state(now)
    cells = (
        Text(key.id),
        Text(one_line(key.name)),
        Text(f"…{key.last_four}"),
        Text(str(state), _STYLES[state]),
        Text(str(key.role)),
        Text(one_line(key.tenant)),
        Text(since(key.created_at, now)),
    )
    return Row(cells, Text(_terms(key, now), "dim"))


def _terms(key: AccessKey, now: datetime) -> str:
    """What holds for this key beyond the usual, and its limits."""
    words = [one_line(", ".join(key.models))] if key.models else []
    if key.lane is not Lane.INTERACTIVE:
        words.append(f"lane {key.lane}")
    words += _limits(key) or ["no limits"]
    if key.revoked_at is not None:
        words.append(f"revoked {when(key.revoked_at, now)}")
    elif key.expires_at is not None:
        words.append(f"until {when(key.expires_at, now)}")
    return "; ".join(words)


def _limits(key: AccessKey) -> list[str]:
    return [f"{limit:,} {what}" for limit, what in _all_limits(key) if limit is not None]


def _told_limits(key: AccessKey) -> str:
    """Those that are not set, too: a key that may use everything is easily made by mistake."""
    words = [f"{'no limit on' if limit is None else f'{limit:,}'} {what}" for limit, what in _all_limits(key)]
    return ", ".join(words) if _limits(key) else "none of its own"


def _all_limits(key: AccessKey) -> tuple[tuple[int | None, str], ...]:
    return (
        (key.requests_per_minute, "requests/min"),
        (key.tokens_per_minute, "tokens/min"),
        (key.parallel, "parallel"),
    )
