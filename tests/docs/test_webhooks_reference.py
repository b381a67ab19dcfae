"""The page on webhooks: its receiver takes our messages and refuses others, and its waits are the ones in force."""

import re
import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import pytest

from headgate.core.webhook import MOST_RESULT_BYTES, WebhookEvent
from headgate.core.webhook_wire import SCHEDULE, derived_secret, signed_headers

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "webhooks.md").read_text(encoding="utf-8")
SECRET = derived_secret("local", b"of a test")
UNITS = {"s": 1, "min": 60, "h": 3600}


def test_the_receiver_of_the_page_takes_a_message_once_and_refuses_a_forged_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    known: dict[str, Any] = {}
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "webhooks.md", "exec"), known)
    handler = known["Receiver"]
    handler.secret = SECRET
    handler.log_message = lambda *_: None
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        (body,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
        url = f"http://127.0.0.1:{server.server_port}/"
        assert [post(url, body.encode(), SECRET) for _ in range(2)] == [204, 204]
        assert post(url, body.encode(), derived_secret("another", b"of a test")) == 401
    finally:
        server.shutdown()
        server.server_close()
    assert capsys.readouterr().out == "job.completed job_019c13a1b2c3d4e5f6\n"


def post(url: str, body: bytes, secret: str) -> int:
    now = datetime.now(UTC).timestamp()
    headers = {
        name.decode(): value.decode()
        for name, value in signed_headers("msg_1", body, secrets=[secret], now=now)
    }
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_the_waits_of_the_page_are_the_ones_in_force() -> None:
    told = re.search(r"the waits are (.*?), each", PAGE)
    assert told is not None
    waits = tuple(float(number) * UNITS[unit] for number, unit in re.findall(r"(\d+) (\w+)", told[1]))
    assert waits == SCHEDULE.waits_s


def test_the_page_names_every_event_and_the_bound_of_results() -> None:
    assert [event for event in WebhookEvent if f"`{event}`" not in PAGE] == []
    assert f"{MOST_RESULT_BYTES // 1024} KiB" in PAGE
