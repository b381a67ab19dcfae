"""Lines on the disk that outlive their writer: what a process knew for sure before it was killed."""

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any


class Ledger:
    """One file per writer, so that only its very last line can be torn. Each line is on the disk when `add` returns."""

    def __init__(self, folder: str | Path, name: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        path = Path(folder) / f"{name}.{os.getpid()}-{time.time_ns()}.jsonl"
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC)

    def add(self, **facts: Any) -> None:
        os.write(self._fd, json.dumps({**facts, "at": time.monotonic(), "pid": os.getpid()}).encode() + b"\n")
        os.fdatasync(self._fd)


def read(folder: str | Path, name: str) -> list[dict[str, Any]]:
    """All writers' lines in the order of their times; `time.monotonic` is one clock for all processes."""
    files = Path(folder).glob(f"{name}.*.jsonl")
    lines = itertools.chain.from_iterable(file.read_bytes().splitlines(keepends=True) for file in files)
    found: list[dict[str, Any]] = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return sorted(found, key=lambda line: float(line["at"]))
