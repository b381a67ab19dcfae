"""Where a command's backend is: at `--url` or HEADGATE_URL, else in the database that the settings name."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rich.text import Text

from headgate.cli.backend import Backend
from headgate.cli.remote import named_url, run_there
from headgate.cli.remote_backend import RemoteBackend
from headgate.cli.running import database_is_missing, run, run_existing, settings_to_look
from headgate.cli.screen import note
from headgate.cli.store_backend import StoreBackend
from headgate.core.errors import InvalidRequest
from headgate.settings import Settings
from headgate.wiring.stores import database_name

T = TypeVar("T")
Page = tuple[Sequence[T], bool]
LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class AtGateway:
    """A backend at the other end of a line."""

    url: str

    def run(self, action: Callable[[Backend], Awaitable[T]]) -> T:
        return run_there(self.url, lambda client: action(RemoteBackend(client)))

    def run_existing(self, action: Callable[[Backend], Awaitable[T]]) -> T:
        return self.run(action)

    def page(self, action: Callable[[Backend], Awaitable[Page[T]]]) -> Page[T]:
        return self.run(action)

    def name_it(self, *, as_json: bool) -> None:
        """Say where a list was read, to people."""
        if not as_json:
            note(Text(f"Read from {self.url}", "dim"))

    def file(self, file_id: str) -> str:
        """Where a file's bytes are."""
        return f"{self.url}/v1/files/{file_id}/content"


@dataclass(frozen=True, slots=True)
class InDatabase:
    """A backend in this process."""

    settings: Settings
    tenant: str = LOCAL

    def run(self, action: Callable[[Backend], Awaitable[T]]) -> T:
        return run(self.settings, lambda gateway: action(StoreBackend(gateway, self.tenant)))

    def run_existing(self, action: Callable[[Backend], Awaitable[T]]) -> T:
        """For what needs a database that exists: see `running.run_existing`."""
        return run_existing(self.settings, lambda gateway: action(StoreBackend(gateway, self.tenant)))

    def page(self, action: Callable[[Backend], Awaitable[Page[T]]]) -> Page[T]:
        """A page of a list, which is empty where there is no database."""
        return ((), False) if database_is_missing(self.settings) else self.run_existing(action)

    def name_it(self, *, as_json: bool) -> None:
        """Say where a list was read: to people always, to programs only that there is nothing to read."""
        name = database_name(self.settings)
        if database_is_missing(self.settings):
            note(Text(f"{name} does not exist. Is this the folder of the gateway?", "yellow"))
        elif not as_json:
            note(Text(f"Read from {name}", "dim"))

    def file(self, file_id: str) -> str:
        return str(self.settings.data_dir / "files" / file_id)


Where = AtGateway | InDatabase


def reach(
    url: str | None,
    tenant: str,
    config: Path | None,
    settings: Callable[[Path | None], Settings] = settings_to_look,
) -> Where:
    """The place that was named. Of a gateway from afar nobody's settings are read here."""
    there = named_url(url, config)
    if there is None:
        return InDatabase(settings(config), tenant)
    if tenant != LOCAL:
        raise InvalidRequest(
            f"--tenant is for the database; at {there} the tenant is that of the key in HEADGATE_API_KEY",
            param="tenant",
        )
    return AtGateway(there)
