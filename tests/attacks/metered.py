"""A served gateway in a process of its own, which tells what its event loop spent on one callback, and its memory at the most."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import internal_errors
from server.http.front_stage import Answer

PATIENCE_S: Final = 30.0
MOST_CALLBACK_S: Final = 0.1
MB: Final = 1_000_000
MOST_GROWTH: Final = 64 * MB
TRIES: Final = 5
"""What our code stops, it stops each time; a busy machine does not."""
_SERVE: Final = """
import asyncio, os, signal, sys, threading, time
sys.modules["uvloop"] = None  # asyncio's own loop can be looked into.
path, sys.argv = sys.argv[1], ["headgate", *sys.argv[2:]]
from headgate.cli import main
run, longest_s, inside, asked = asyncio.Handle._run, 0.0, False, False

def timed(handle):
    global longest_s, inside
    if threading.current_thread() is not threading.main_thread():
        return run(handle)
    inside, before = True, time.thread_time()
    run(handle)
    inside, longest_s = False, max(longest_s, time.thread_time() - before)
    if asked:
        tell()

def tell(*_):
    global longest_s, asked
    asked = inside  # A callback that is still running counts.
    if not inside:
        with open(path + ".new", "w") as file:
            file.write(str(longest_s))
        os.rename(path + ".new", path)
        longest_s = 0.0

asyncio.Handle._run = timed
signal.signal(signal.SIGUSR2, tell)
main()
"""


@dataclass(frozen=True)
class Spent:
    """What an act cost: the processor time of its longest callback, and the memory beyond the bodies that were sent."""

    callback_s: float
    growth_bytes: int

    @property
    def allowed(self) -> bool:
        return self.callback_s <= MOST_CALLBACK_S and self.growth_bytes <= MOST_GROWTH

    def __str__(self) -> str:
        return f"{self.callback_s * 1000:.0f} ms, {self.growth_bytes / MB:+.0f} MB"


@dataclass
class Metered:
    """A running gateway. `key` may call, or is empty where there are none."""

    port: int
    key: str
    process: "subprocess.Popen[str]"
    told: Path
    sent_bytes: int = 0
    """The bodies of all requests."""

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        """One request on a connection of its own."""
        self.sent_bytes += len(body or b"")
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            said = {name.replace("_", "-"): value for name, value in headers.items()}
            said = {"x-api-key": self.key, **said} if self.key else said
            line.request(method, path, body, {name: value for name, value in said.items() if value})
            response = line.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, names, response.read())
        finally:
            line.close()

    def longest_s(self) -> float:
        """The processor time of the longest callback since it was asked last."""
        self.told.unlink(missing_ok=True)
        assert self.ask("GET", "/health").status == 200  # Who had to wait has had a turn.
        self.process.send_signal(signal.SIGUSR2)
        ends_at = time.monotonic() + PATIENCE_S
        while not self.told.exists():
            assert time.monotonic() < ends_at
            assert self.process.poll() is None
            time.sleep(0.01)
        return float(self.told.read_text())

    def measure(self, act: Callable[[], object]) -> Spent:
        """The least of some tries."""
        callback_s, growth_bytes = 9.0, 2**40
        for _ in range(TRIES):
            self.longest_s()
            memory_before, sent_before = self.forget_memory(), self.sent_bytes
            act()
            growth = self.most_memory() - memory_before - (self.sent_bytes - sent_before)
            callback_s, growth_bytes = min(callback_s, self.longest_s()), min(growth_bytes, growth)
            if Spent(callback_s, growth_bytes).allowed:
                break
        return Spent(callback_s, growth_bytes)

    def forget_memory(self) -> int:
        """From now on the most is counted anew. Returns the memory in use, in bytes."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        return self.most_memory()

    def most_memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmHWM:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


@contextmanager
def metered(folder: Path, settings: dict[str, Any], *, keyed: bool = True) -> Iterator[Metered]:
    (folder / "headgate.yaml").write_text(json.dumps({"data_dir": "data", **settings}))
    # Freed memory goes back at once, so that what one request leaves behind does not hide what the next one takes.
    allocator = {"MALLOC_MMAP_THRESHOLD_": "4000000", "MALLOC_TRIM_THRESHOLD_": "4000000"}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **allocator}
    key = ""
    if keyed:
        command = [sys.executable, "-m", "headgate", "keys", "create", "app", "--role", "operate"]
        made = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=60
        )
        found = re.search(r"\bhg_\w+", made.stdout)
        assert found is not None
        key = found[0]
    told = folder / "longest"
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE, str(told), "serve", "--listen", "127.0.0.1:0"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        found = re.search(r"http://127.0.0.1:(\d+)", process.stdout.readline())
        assert found is not None
        yield Metered(int(found[1]), key, process, told)
    finally:
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
        internal_errors.read(out + err)
