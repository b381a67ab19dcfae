"""nginx as a reverse proxy: one process, upstream connections kept. The peer that gateways are measured beside."""

import contextlib
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from processes import Running, free_port, started

MISSING: Final = (
    "nginx is not installed (Debian: apt-get install nginx-light): the bare proxy stands in for it"
)
_TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
_SETTINGS: Final = """
master_process off; daemon off; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 4096; }}
http {{
  access_log off; keepalive_requests 100000000; {temporary}
  upstream stub {{ server 127.0.0.1:{upstream_port}; keepalive 256; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://stub{path}; proxy_http_version 1.1; proxy_set_header Connection ""; }}
  }}
}}
"""


def command() -> str | None:
    """Where it is, if it is anywhere; servers' programs are often not on a user's path."""
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def proxy(upstream_port: int, path: str, core: int) -> Iterator[Running]:
    """Everything it is asked goes to this path of the upstream."""
    program = command()
    assert program is not None
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="headgate-bench-") as folder:
        temporary = " ".join(f"{name}_temp_path {folder}/{name};" for name in _TEMPORARY)
        settings = _SETTINGS.format(
            folder=folder, temporary=temporary, upstream_port=upstream_port, port=port, path=path
        )
        file = Path(folder, "nginx.conf")
        file.write_text(settings)
        with started([program, "-e", f"{folder}/errors", "-c", str(file)], core, port=port) as running:
            _wait_for(port)
            yield running


def _wait_for(port: int) -> None:
    until = time.monotonic() + 5
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return
