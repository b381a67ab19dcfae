"""The demo's processes: started away from the terminal, looked after, and gone when it is over, however it ends."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

import headgate
from headgate.cli.demo.tasks import VICTIM
from headgate.core.errors import HeadgateError

PATIENCE_S: Final = 90.0
LOOK_EVERY_S: Final = 0.05
_TAIL_LINES: Final = 12
_URL: Final = r"http://127\.0\.0\.1:\d+"
_KEPT: Final = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TMPDIR|TEMP|TMP|TZ|TERM|COLORTERM|COLUMNS|LINES|NO_COLOR|FORCE_COLOR|LD_LIBRARY_PATH|PYTHON\w+"
)


def forget_surroundings() -> None:
    """Keys, proxies and settings that lie around are not for the demo: it calls nobody but itself."""
    for name in [name for name in os.environ if _KEPT.fullmatch(name) is None]:
        del os.environ[name]


class Child:
    """One `headgate …`, with its output in a file of its own."""

    def __init__(self, folder: Path, number: int, words: tuple[str, ...], env: Mapping[str, str]) -> None:
        self.log = folder / f"{words[0]}-{number}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "headgate", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": _modules_path(), **env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C at the terminal is for the demo alone: it ends its children itself.
                start_new_session=True,
            )
        self.pid = self._process.pid

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    @property
    def at_work(self) -> bool:
        return self.said("headgate work: ") is not None

    @property
    def killed(self) -> bool:
        return self._process.poll() == -signal.SIGKILL

    def kill(self) -> None:
        """As `kill -9`."""
        self._process.kill()
        self._process.wait()

    def said(self, pattern: str) -> str | None:
        """The first part of its output that matches."""
        match = re.search(pattern, self.log.read_text("utf-8", "replace"))
        return None if match is None else match[0]

    def trouble(self) -> str:
        tail = self.log.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        return "\n".join([f"{self.log.stem} (pid {self.pid}) ended by itself; its last words:", *tail])


class Processes:
    """All of them. Nothing of them is left when the block ends."""

    def __init__(self, folder: Path, *, mark: str) -> None:
        self._folder = folder
        self._worker_env = {VICTIM: mark}
        self._children: list[Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()

    async def serve(self) -> tuple[Child, str]:
        """The gateway, without a worker, and its URL."""
        child = self._start("serve", "--no-work")
        await until(lambda: child.said(_URL) is not None or child.over, "for the gateway's start")
        url = child.said(_URL)
        if url is None:
            raise HeadgateError(child.trouble())
        return child, url

    def work(self) -> Child:
        return self._start("work", env=self._worker_env)

    def _start(self, *words: str, env: Mapping[str, str] | None = None) -> Child:
        config = ("--config", str(self._folder / "headgate.yaml"))
        child = Child(self._folder, len(self._children), (*words, *config), env or {})
        self._children.append(child)
        return child


def _modules_path() -> str:
    """Where this very code is found from another folder, too."""
    searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = Path(headgate.__file__).parents[1]
    return os.pathsep.join(map(str, (here, *(Path(path).absolute() for path in searched if path))))


async def until(reached: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not reached():  # noqa: ASYNC110 - mostly another process's doing
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise HeadgateError(f"the demo waited {PATIENCE_S:g} s in vain {what}") from None
