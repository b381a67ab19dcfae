"""The parent's side: keeps a few parsing processes warm, takes turns between owners, and kills what takes too long.

A process is started as a new program and spoken to over pipes: nothing is forked that has threads, and it works on
every event loop.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import msgspec

from headgate.apps.untrusted.child import CPU_S, LENGTH, Result
from headgate.apps.untrusted.errors import ParserDied, ParserMissing, Unreadable

T = TypeVar("T")
MAX_PROCESSES: Final = 2
"""One that is kept busy for its ten seconds leaves one for the others."""
MAX_CALLS: Final = 200
"""A process that has served so many is replaced: what its libraries leak goes with it."""
WALL_S: Final = 60.0
"""How long a call may take where the machine has no time for it, or the process stands still."""
MAX_RESULT_BYTES: Final = 16 * 1024 * 1024
_KEPT: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "LANG", "LC_ALL", "SYSTEMROOT", "TMPDIR")
"""The rest of the environment, with all its keys and passwords, stays here."""


class Parser:
    """Calls one function (`package.module:function`) in a process of its own, started at the first call.

    Its arguments are bytes, texts and numbers; its result is what msgpack can hold.
    """

    def __init__(self, function: str) -> None:
        self._function = function
        self._threads = ThreadPoolExecutor(MAX_PROCESSES, thread_name_prefix="headgate-parsing")
        self._places = asyncio.Semaphore(MAX_PROCESSES)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._idle: list[_Child] = []
        self._children: weakref.WeakSet[_Child] = weakref.WeakSet()

    async def call(self, owner: str, result: type[T], **arguments: Any) -> T:
        """One call at a time for one owner. Raises `Unreadable`, `ParserMissing` or `ParserDied`."""
        turn = self._turns.setdefault(owner, asyncio.Lock())
        async with turn, self._places:
            child = self._idle.pop() if self._idle else _Child(self._function)
            self._children.add(child)
            answer = asyncio.get_running_loop().run_in_executor(self._threads, child.call, arguments)
            try:
                found = await answer
            except BaseException:
                # Nobody waits for it any more: it must not stay at work.
                child.kill()
                raise
            if child.calls < MAX_CALLS and not found.spent and not found.missing:
                self._idle.append(child)
        if found.missing is not None:
            raise ParserMissing(found.missing)
        if found.unreadable is not None:
            raise Unreadable(found.unreadable)
        return msgspec.convert(found.value, result)

    def close(self) -> None:
        """End the processes; a call that is under way fails. They end with this process in any case."""
        self._idle.clear()
        for child in tuple(self._children):
            child.kill()
        self._threads.shutdown(wait=False)


class _Child:
    """One process, started at its first call, ended with this object. Called by one thread at a time."""

    def __init__(self, function: str) -> None:
        self.calls = 0
        self._function = function
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None

    def call(self, arguments: dict[str, Any]) -> Result:
        """Blocks."""
        self.calls += 1
        process = self._process or self._start()
        hurry = threading.Timer(WALL_S, process.kill)
        hurry.daemon = True
        hurry.start()
        try:
            return _exchange(process, msgspec.msgpack.encode(arguments))
        except (OSError, EOFError, msgspec.DecodeError):
            _end(process)
        finally:
            hurry.cancel()
        if process.returncode == -getattr(signal, "SIGXCPU", 0):
            raise Unreadable(f"parsing it takes more than {CPU_S:g} s")
        raise ParserDied(f"the parsing process ended before its time (exit code {process.returncode})")

    def kill(self) -> None:
        """May be called by any thread, at any time. The call that is under way fails."""
        self._killed = True
        if self._process is not None:
            self._process.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        # What can be imported here can be imported there, and nothing else.
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        process = self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-P", "-m", "headgate.apps.untrusted.child", self._function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        weakref.finalize(self, _end, process)
        if self._killed:
            process.kill()
        return process


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> Result:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    process.stdin.write(LENGTH.pack(len(request)) + request)
    process.stdin.flush()
    head = process.stdout.read(LENGTH.size)
    if len(head) < LENGTH.size or (size := LENGTH.unpack(head)[0]) > MAX_RESULT_BYTES:
        raise EOFError
    return msgspec.msgpack.decode(process.stdout.read(size), type=Result)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Killed, waited for, its pipes closed."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
