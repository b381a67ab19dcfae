"""Times on the command line where the clock of this machine is an hour behind that of the database or the gateway."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cli.command_stage import FIXTURES, Desk, end
from stores.postgres_stage import run_sql

AHEAD = timedelta(hours=1)
DOUBT = timedelta(minutes=5)


@pytest.fixture
def database(desk: Desk, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A real PostgreSQL whose clock is an hour ahead of ours."""
    ours = "select pg_catalog.clock_timestamp() + interval '1 hour'"
    asyncio.run(
        run_sql(
            postgres_url,
            "create schema ahead",
            f"create function ahead.clock_timestamp() returns timestamptz language sql as $${ours}$$",
            "alter database postgres set search_path = ahead, pg_catalog, public",
        )
    )
    monkeypatch.setenv("HEADGATE__DATABASE", postgres_url)
    yield postgres_url
    asyncio.run(
        run_sql(
            postgres_url,
            "alter database postgres reset search_path",
            "drop schema ahead cascade",
        )
    )


def _is_near(text: str, moment: datetime) -> bool:
    return abs(datetime.fromisoformat(text) - moment) < DOUBT


def test_a_key_is_made_and_expires_by_the_clock_of_the_database(desk: Desk, database: str) -> None:
    made = desk.run("keys", "create", "app", "--expires", "30m")
    assert made.code == 0, made.err

    there = datetime.now(UTC) + AHEAD
    [key] = desk.run("keys", "list", "--json").json["data"]
    assert _is_near(key["created_at"], there)
    assert _is_near(key["expires_at"], there + timedelta(minutes=30))
    assert " active " in desk.run("keys", "list").out
    assert "is revoked" in desk.run("keys", "revoke", "app").out
    [key] = desk.run("keys", "list", "--json").json["data"]
    assert _is_near(key["revoked_at"], there)


def test_dead_letters_are_chosen_by_the_clock_of_the_database(desk: Desk, database: str) -> None:
    job_id = desk.submit("refuse", {"text": "no"})
    worked = end(
        desk.start("work", "--burst", env={"HEADGATE__DATABASE": database, "PYTHONPATH": str(FIXTURES)})
    )
    assert worked.code == 0, worked.err

    assert job_id in desk.run("dead", "list", "--until", "0s").out
    assert job_id in desk.run("dead", "list", "--since", "10m").out
    assert "1 dead letter matches" in desk.run("dead", "replay", "--since", "10m", "--dry-run").out
    assert desk.run("dead", "replay", "--task", "refuse", "--yes").out == "1 dead letter replayed.\n"


def test_a_gateway_is_asked_by_the_time_that_it_tells(desk: Desk) -> None:
    asked: list[dict[str, list[str]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(parse_qs(urlsplit(self.path).query))
            body = json.dumps({"object": "list", "data": [], "has_more": False, "last_id": None}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return format_datetime(datetime.now(UTC) + AHEAD, usegmt=True)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as gateway:
        thread = Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        url = f"http://127.0.0.1:{gateway.server_port}"
        listed = desk.run("dead", "list", "--since", "2h", "--url", url)
        replayed = desk.run("dead", "replay", "--task", "refuse", "--dry-run", "--url", url)
        gateway.shutdown()
        thread.join()

    assert (listed.code, replayed.code) == (0, 0), listed.err + replayed.err
    there = datetime.now(UTC) + AHEAD
    [since] = [query["since"][0] for query in asked if "since" in query]
    [until] = [query["until"][0] for query in asked if "until" in query]
    assert _is_near(since, there - timedelta(hours=2))
    assert _is_near(until, there)
