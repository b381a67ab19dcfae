"""Who listens on a port of this machine."""

import contextlib
import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_LISTENING: Final = "0A"
_LONGEST_COMMAND_CHARS: Final = 60


def taken(host: str, port: int) -> str | None:
    """Why nobody else can listen there; None when somebody can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        return "it is taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
    return None


def who_listens(port: int) -> str | None:
    """`pid 4711 (python -m headgate serve)`, as far as the system tells us: other users' processes it hides."""
    sockets = {f"socket:[{inode}]" for inode in _listening(port)}
    if not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(file.readlink()) in sockets for file in (process / "fd").iterdir()):
                return f"pid {process.name} ({_command(process)})"
    return None


def _listening(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                    yield fields[9]


def _command(process: Path) -> str:
    words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return words if len(words) <= _LONGEST_COMMAND_CHARS else f"{words[:_LONGEST_COMMAND_CHARS]}…"
