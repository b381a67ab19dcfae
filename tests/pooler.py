"""A real PgBouncer before the private PostgreSQL, for tests. It runs as nobody when we are root, and ends with this process."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import postgres

PATIENCE_S: Final = 20.0
MISSING: Final = "pgbouncer is not installed; install it with: sudo apt-get install pgbouncer"
# Waits for the end of its input, which comes with the end of our process, then stops what it has started.
_KEEPER: Final = '"$@" & pid=$!; read -r _; kill "$pid"; wait "$pid"'


@dataclass(frozen=True)
class Pooler:
    """One PgBouncer. `url` has what Headgate needs behind it."""

    port: int
    log_file: Path

    @property
    def plain_url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def url(self) -> str:
        return f"{self.plain_url}?statement_cache_size=0"

    def wait_until_it_serves(self) -> None:
        """A server's connection that was ended in its login makes it refuse the next client, whoever that is."""
        asyncio.run(self._served())

    async def _served(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                connection = await asyncpg.connect(self.plain_url, statement_cache_size=0)
                try:
                    await connection.execute("select 1")
                finally:
                    await connection.close()
            except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)
            else:
                return

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


def program() -> str | None:
    """Debian puts it where only root looks."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def running(path: str, server_url: str, **settings: str) -> Iterator[Pooler]:
    """In transaction mode, unless the settings say otherwise. Few server connections, so that they are shared."""
    folder = postgres.private_folder("headgate-pooler-")
    pooler = Pooler(postgres.free_port(), folder / "log")
    (folder / "pgbouncer.ini").write_text(_ini(pooler, urlsplit(server_url).port, settings))
    command = ["/bin/sh", "-c", _KEEPER, "keeper", path, "--quiet", os.fspath(folder / "pgbouncer.ini")]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        **postgres.as_nobody(),
    )
    try:
        _wait_for(pooler, process)
        yield pooler
    finally:
        process.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def _ini(pooler: Pooler, server_port: int | None, settings: dict[str, str]) -> str:
    usual = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(pooler.port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": "transaction",
        "default_pool_size": "3",
        "max_client_conn": "100",
        "server_login_retry": "0.1",
        "logfile": os.fspath(pooler.log_file),
    }
    lines = [f"{name} = {value}" for name, value in {**usual, **settings}.items()]
    database = f"postgres = host=127.0.0.1 port={server_port} user=postgres"
    return "\n".join(["[databases]", database, "[pgbouncer]", *lines, ""])


def _wait_for(pooler: Pooler, process: "subprocess.Popen[bytes]") -> None:
    until = time.monotonic() + PATIENCE_S
    while not (pooler.log_file.exists() and "process up" in pooler.log):
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"pgbouncer does not start: {pooler.log if pooler.log_file.exists() else ''}")
        time.sleep(0.01)
