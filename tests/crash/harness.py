"""The parent's side of the crash tests: a place where processes meet, and the processes, to be killed at will."""

import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw
from crash import ledger

TESTS = Path(__file__).resolve().parents[1]
SEARCHED = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
ROUNDS = int(os.environ.get("HEADGATE_CRASH_ROUNDS", "0"))
"""How many kills `make crash` asks for, over both stores; 0 in an ordinary test run, which does fewer."""
SEED = int(os.environ.get("HEADGATE_CRASH_SEED", "7"))
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Site:
    """One database and one data folder that all processes of a test share."""

    kind: str
    folder: Path
    database: str

    @property
    def ledgers(self) -> str:
        return str(self.folder / "ledgers")

    @property
    def locks(self) -> list[Path]:
        return list((self.folder / "nodes").glob("*.lock"))

    def settings(self, **jobs: Any) -> dict[str, Any]:
        return {"data_dir": str(self.folder), "database": self.database, "jobs": jobs}

    def lines(self, name: str) -> list[dict[str, Any]]:
        return ledger.read(self.ledgers, name)

    def log_of(self, child: "Child") -> str:
        return (self.folder / f"{child.role}-{child.pid}.log").read_text(errors="replace")


class Clocks:
    """How far the clocks of the processes that follow this file are ahead: see `crash.clocks`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(16))

    def set(self, wall_s: float, suspended_s: float = 0.0) -> None:
        with self.path.open("r+b") as file:
            file.write(struct.pack("dd", wall_s, suspended_s))


class Nursery:
    """Where children come from."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "crash.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *SEARCHED])},
        )

    def ask(self, **asked: Any) -> int:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._asking:
            stdin.write(json.dumps(asked) + "\n")
            stdin.flush()
            return int(stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class Child:
    """A process that can be waited for, signalled and killed. It stays a zombie, and its pid its own, until reaped."""

    def __init__(self, nursery: Nursery, role: str, pid: int) -> None:
        self.role = role
        self.pid = pid
        self.code: int | None = None
        self._nursery = nursery
        self._pidfd = os.pidfd_open(pid)

    def is_over(self, within_s: float = 0.0) -> bool:
        return self.code is not None or bool(select.select([self._pidfd], [], [], within_s)[0])

    def send(self, what: signal.Signals) -> None:
        signal.pidfd_send_signal(self._pidfd, what)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """How it ended: its code, or minus the signal."""
        if self.code is None:
            assert self.is_over(within_s), f"{self.role} {self.pid} does not end"
            self.code = self._nursery.ask(reap=self.pid)
            os.close(self._pidfd)
        return self.code

    def kill(self) -> float:
        """As `kill -9`; the time when it was dead. A child that ended by itself is a mistake."""
        if self.code is None:
            self.send(signal.SIGKILL)
        died_at = time.monotonic()
        assert self.wait() == -signal.SIGKILL, f"{self.role} {self.pid} ended by itself: {self.code}"
        return died_at


@dataclass
class Family:
    """The children of one test. None of them outlives it."""

    nursery: Nursery
    site: Site
    children: list[Child] = field(default_factory=list)

    def start(self, role: str, *, failpoint: str | None = None, **arguments: Any) -> Child:
        given = {"ledgers": self.site.ledgers, **arguments}
        log = str(self.site.folder / role)
        pid = self.nursery.ask(role=role, failpoint=failpoint, log=log, arguments=given)
        child = Child(self.nursery, role, pid)
        self.children.append(child)
        return child

    def worker(self, *, failpoint: str | None = None, pace: float = 1.0, **jobs: Any) -> Child:
        """A process that runs jobs, with these settings under `jobs`."""
        return self.start("worker", failpoint=failpoint, settings=self.site.settings(**jobs), pace=pace)

    def freeze(self, child: Child) -> None:
        """SIGSTOP; but not during a write to the file: SQLite's lock would stop all other processes with it."""
        while True:
            child.send(signal.SIGSTOP)
            if self.site.kind != "sqlite" or _is_writable(self.site.folder / "headgate.db"):
                return
            child.send(signal.SIGCONT)
            time.sleep(0.01)

    def end(self) -> None:
        for child in self.children:
            if child.code is None:
                child.send(signal.SIGKILL)
                child.wait()


def until(what: str, check: Callable[[], bool], *children: Child, within_s: float = PATIENCE_S) -> float:
    """Wait for the truth, which needs these children alive; the time when it was seen."""
    deadline = time.monotonic() + within_s
    while not check():
        for child in children:
            assert not child.is_over(), f"{what}: {child.role} {child.pid} ended by itself"
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(0.01)
    return time.monotonic()


def _is_writable(database: Path) -> bool:
    connection = apsw.Connection(str(database))
    try:
        connection.execute("begin immediate")
        connection.execute("rollback")
    except apsw.BusyError:
        return False
    finally:
        connection.close()
    return True
