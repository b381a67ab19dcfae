"""Pages that are walked through as a reader would: files written, a server started, commands run, in the page's order."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import internal_errors

DOCS: Final = Path(__file__).parents[2] / "docs"
PORT: Final = "8400"
_FENCE: Final = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)
_NAMED: Final = re.compile(r"`([\w./-]+\.(?:yaml|py|jsonl))`:\s*\Z")
PATIENCE_S: Final = 60


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """(language, label, text). A block that follows "write `name`:" has the name as its label."""
    for found in _FENCE.finditer(page):
        language, label, text = found.groups()
        named = _NAMED.search(page[: found.start()])
        yield language, label or (named[1] if named else ""), text


@contextmanager
def command_folder(folder: Path) -> Iterator[Path]:
    """`headgate`, as the tested sources have it."""
    shims = folder / "bin"
    shims.mkdir()
    shim = shims / "headgate"
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m headgate "$@"\n')
    shim.chmod(0o755)
    yield shims


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Walk:
    """One page in one folder."""

    def __init__(self, folder: Path, shims: Path, extra: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.said = ""
        kept = {name: value for name, value in os.environ.items() if name in {"HOME", "PYTHONPATH", "LANG"}}
        path = f"{shims}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        listen = f"127.0.0.1:{self.port}"
        self._env = {
            **kept,
            "PATH": path,
            "HEADGATE__LISTEN": listen,
            "NO_COLOR": "1",
            "COLUMNS": "110",
            **extra,
        }
        self._servers: list[subprocess.Popen[str]] = []
        self._log = folder.with_name("log")

    def take(self, language: str, label: str, text: str) -> None:
        text = text.replace(f":{PORT}", f":{self.port}")
        if language in {"yaml", "python"} and label:
            path = self.folder / label
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif language == "sh" and label == "serve":
            self._serve(text)
        elif language == "sh" and label in {"", "run"}:
            self.run(text)

    def run(self, script: str) -> None:
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        self.said += ran.stdout
        assert ran.returncode == 0, f"{script}\n{ran.stdout}\n{ran.stderr}"

    def _serve(self, command: str) -> None:
        with self._log.open("ab") as log:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._env,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._servers.append(server)
        assert server.stdout is not None
        assert "headgate" in server.stdout.readline()

    def close(self) -> None:
        for server in self._servers:
            server.terminate()
        for server in self._servers:
            server.communicate(timeout=PATIENCE_S)
            assert server.returncode == 0
        if self._log.exists():
            internal_errors.read(self._log.read_bytes())


def settings_of(page: str) -> dict[str, str]:
    """The complete settings files that a page shows, by name."""
    return {
        label: text
        for language, label, text in blocks((DOCS / page).read_text())
        if language == "yaml" and label
    }


@contextmanager
def walking(page: str, folder: Path, **extra: str) -> Iterator[Walk]:
    """Do what the page says; everything must work. Its servers run until the block ends."""
    with command_folder(folder) as shims:
        place = folder / "place"
        place.mkdir()
        walked = Walk(place, shims, extra)
        try:
            for block in blocks((DOCS / page).read_text()):
                walked.take(*block)
            yield walked
        finally:
            walked.close()


def walk(page: str, folder: Path, **extra: str) -> str:
    """The same, for a page that leaves nothing to look at but what its commands said."""
    with walking(page, folder, **extra) as walked:
        return walked.said
