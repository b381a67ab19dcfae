"""Processes of a measurement: each on its core, and what the system says of them. Linux only."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CORES: Final = sorted(os.sched_getaffinity(0))
MEASURED_CORE: Final = CORES[0]
"""For whatever is measured, alone."""
OTHER_CORE: Final = CORES[-1]
"""For the load and the upstream."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that listens on a port."""

    pid: int
    port: int


@contextlib.contextmanager
def started(command: list[str], core: int, *, port: int | None = None) -> Iterator[Running]:
    """Start it on a core. Unless its port is given, the first line it prints is the port. What it logs is not shown."""
    process = subprocess.Popen(
        ["taskset", "--cpu-list", str(core), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        if port is None and not (first := process.stdout.readline().strip()).isdigit():
            raise RuntimeError(f"{' '.join(command)} did not start")
        yield Running(process.pid, int(first) if port is None else port)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def script(name: str, *args: object) -> list[str]:
    """A file beside this one, as a command."""
    return [sys.executable, str(Path(__file__).with_name(name)), *map(str, args)]


def pin(core: int) -> None:
    os.sched_setaffinity(0, {core})


def processor_s(pid: int) -> float:
    """What its threads have had of their cores until now. The scheduler counts it exactly, unlike the ticks in `stat`."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
