"""`headgate serve` whose database is removed or away while it runs: when it is ready, and what is there after a restart."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from email.message import Message
from pathlib import Path

import postgres
import pytest
from cli.test_serve_command import Served, serving

ACCEPTED = 10
ENOUGH_S = 20.0


def _submit(served: Served) -> tuple[int, dict[str, str], dict[str, object]]:
    body = {"task": "chat", "input": {"model": "stuck", "messages": [{"role": "user", "content": "hi"}]}}
    request = urllib.request.Request(f"{served.url}/v1/jobs", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, _lower(answer.headers), json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _lower(error.headers), json.loads(error.read())


def _lower(headers: Message) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _until_not_ready(served: Served) -> None:
    until = time.monotonic() + ENOUGH_S
    while served.get("/health/ready") != 503:
        assert time.monotonic() < until, "/health/ready stays 200"


def _remove_the_log(database: Path) -> None:
    database.with_name(f"{database.name}-wal").unlink()


def _remove_log_and_index(database: Path) -> None:
    _remove_the_log(database)
    database.with_name(f"{database.name}-shm").unlink()


def _replace_the_log(database: Path) -> None:
    empty = database.with_name("empty")
    empty.touch()
    empty.replace(database.with_name(f"{database.name}-wal"))


def _empty_the_log(database: Path) -> None:
    database.with_name(f"{database.name}-wal").write_bytes(b"")


@pytest.mark.parametrize("idle", [False, True])
@pytest.mark.parametrize("spoil", [_remove_the_log, _remove_log_and_index, _replace_the_log, _empty_the_log])
def test_jobs_accepted_before_the_log_was_removed_are_there_after_a_restart(
    tmp_path: Path, spoil: Callable[[Path], None], idle: bool
) -> None:
    with serving(tmp_path, "--no-work") as served:
        answers = [_submit(served) for _ in range(ACCEPTED)]
        assert {status for status, _, _ in answers} == {202}
        spoil(tmp_path / ".headgate" / "headgate.db")
        if idle:
            _until_not_ready(served)
        for _ in range(5):
            status, headers, body = _submit(served)
            assert (status, body["error"]["code"]) == (503, "store_unavailable")  # type: ignore[index]
            assert headers["retry-after"]
        _until_not_ready(served)
        assert served.get("/health/live") == 200
        assert served.ask("quick")[0] == 200
        # As a crash would: nothing may be left for an orderly end.
        served.process.kill()
        _, said = served.process.communicate(timeout=30)
    assert "headgate.db" in said
    assert "stop all processes that use the database, then start them again" in said
    assert "Traceback" not in said

    with serving(tmp_path, "--no-work") as served:
        assert served.get("/health/ready") == 200
        assert [served.get(f"/v1/jobs/{body['id']}") for _, _, body in answers] == [200] * ACCEPTED


def test_a_database_file_that_is_removed_while_idle_ends_readiness(tmp_path: Path) -> None:
    with serving(tmp_path, "--no-work") as served:
        assert served.get("/health/ready") == 200
        (tmp_path / ".headgate" / "headgate.db").unlink()
        _until_not_ready(served)
        assert _submit(served)[0] == 503
        assert served.get("/health/ready") == 503


def test_doctor_fails_while_a_gateway_has_lost_its_database(tmp_path: Path) -> None:
    """The alert sends the operator to it. What it opens itself works: the trouble is the gateway's."""
    with serving(tmp_path, "--no-work") as served:
        _submit(served)
        _remove_the_log(tmp_path / ".headgate" / "headgate.db")
        _until_not_ready(served)
        port = served.url.rpartition(":")[2]
        (tmp_path / "headgate.yaml").write_text(f"listen: 127.0.0.1:{port}\n")
        answer = subprocess.run(
            [sys.executable, "-m", "headgate", "doctor"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

        assert answer.returncode == 1
        assert "not ready (database_lost)" in " ".join(answer.stdout.split())


def test_while_postgres_is_away_the_gateway_stays_ready(
    tmp_path: Path, postgres_server: postgres.Server, postgres_url: str
) -> None:
    """Direct calls work without it."""
    with serving(tmp_path, "--no-work", database=postgres_url) as served:
        assert _submit(served)[0] == 202
        postgres_server.stop()
        try:
            status, headers, body = _submit(served)
            assert (status, body["error"]["code"]) == (503, "store_unavailable")  # type: ignore[index]
            assert headers["retry-after"]
            assert served.get("/health/ready") == 200
            assert served.ask("quick")[0] == 200
        finally:
            postgres_server.start()
