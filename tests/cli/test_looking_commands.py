"""Commands that only look: they leave the disk as it is, and say which database they read."""

import json
import shutil
from pathlib import Path

import pytest
from cli.command_stage import Desk, serving

JOB = "job_01a1e459d4df45f38faf60c04c79bc15"
BATCH = "batch_01a1e459d4df45f38faf60c04c79bc15"
LISTS = [
    ("jobs", "list"),
    ("dead", "list"),
    ("batches", "list"),
    ("keys", "list"),
    ("webhooks", "list"),
    ("models", "list"),
    ("newsletter", "history"),
]
ONES = [
    ("jobs", "show", JOB),
    ("jobs", "wait", JOB),
    ("jobs", "cancel", JOB),
    ("dead", "show", JOB),
    ("dead", "replay", JOB),
    ("dead", "replay", "--task", "echo", "--yes"),
    ("dead", "discard", "--task", "echo", "--dry-run"),
    ("batches", "show", BATCH),
    ("batches", "wait", BATCH),
    ("batches", "cancel", BATCH),
    ("batches", "retry", BATCH),
    ("keys", "revoke", "app"),
    ("webhooks", "redeliver", JOB),
    ("webhooks", "enable", "https://hooks.example/headgate"),
    ("models", "resume", "simulated"),
]
ELSEWHERE = [("requests", "list"), ("alerts", "list"), ("bookmark", "list")]
NOBODY = "127.0.0.1:1"


def _words(command: tuple[str, ...]) -> str:
    return " ".join(command)


def _tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


@pytest.fixture
def empty(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A folder in which nothing was ever done."""
    monkeypatch.setenv("HEADGATE__LISTEN", NOBODY)
    (desk.folder / "headgate.yaml").unlink()
    return desk


@pytest.fixture
def used(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A folder with one of everything, but with nothing that a reader need find there."""
    monkeypatch.setenv("HEADGATE__LISTEN", NOBODY)
    monkeypatch.setenv("HEADGATE_API_KEY", "unused")
    desk.submit("echo", 1)
    desk.work()
    shutil.rmtree(desk.folder / "data" / "nodes")
    shutil.rmtree(desk.folder / "data" / "logs", ignore_errors=True)
    return desk


# ---- Where there is no database ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", LISTS, ids=_words)
def test_a_list_of_no_database_is_empty_and_makes_none(command: tuple[str, ...], empty: Desk) -> None:
    answer = empty.run(*command)

    assert answer.code == 0, answer.err
    assert f"{empty.folder}/.headgate/headgate.db" in answer.out + answer.err
    assert "does not exist" in answer.out + answer.err
    assert _tree(empty.folder) == {}


@pytest.mark.parametrize("command", LISTS, ids=_words)
def test_a_list_of_no_database_is_json_all_the_same(command: tuple[str, ...], empty: Desk) -> None:
    answer = empty.run(*command, "--json")

    assert (answer.code, answer.json["object"]) == (0, "list")
    assert f"{empty.folder}/.headgate/headgate.db does not exist" in answer.err
    assert _tree(empty.folder) == {}


@pytest.mark.parametrize("command", ONES, ids=_words)
def test_what_is_not_there_without_a_database_says_where_it_looked(
    command: tuple[str, ...], empty: Desk
) -> None:
    answer = empty.run(*command)

    assert (answer.code, answer.out) == (2, "")
    assert f"{empty.folder}/.headgate/headgate.db does not exist" in answer.err
    assert "--config" in answer.err
    assert _tree(empty.folder) == {}


@pytest.mark.parametrize("command", ELSEWHERE, ids=_words)
def test_a_look_at_a_gateway_makes_nothing_here(command: tuple[str, ...], empty: Desk) -> None:
    answer = empty.run(*command)

    assert answer.code == 4
    assert f"http://{NOBODY}" in answer.err
    assert _tree(empty.folder) == {}


@pytest.mark.parametrize("command", [("doctor",), ("config", "check"), ("plan", "--calls", "10")], ids=_words)
def test_a_look_at_the_settings_makes_nothing(command: tuple[str, ...], empty: Desk) -> None:
    assert empty.run(*command).code == 0
    assert _tree(empty.folder) == {}


def test_an_outbox_that_was_never_used_is_empty_and_is_not_made(empty: Desk) -> None:
    outbox = f"{empty.folder}/.headgate/outbox.db"
    listed, flushed = empty.run("outbox", "list"), empty.run("outbox", "flush")

    assert (listed.code, listed.out) == (0, f"The outbox is empty: {outbox} does not exist.\n")
    assert empty.run("outbox", "list", "--json").json["data"] == []
    assert (flushed.code, flushed.out) == (0, f"Nothing to send: {outbox} does not exist.\n")
    for command in ("retry", "discard"):
        answer = empty.run("outbox", command, "1")
        assert (answer.code, f"there is no outbox {outbox}" in answer.err) == (2, True)
    assert _tree(empty.folder) == {}


# ---- Where there is one --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [*LISTS, ("doctor",), ("config", "check")], ids=_words)
def test_a_look_leaves_the_folder_as_it_is(command: tuple[str, ...], used: Desk) -> None:
    before = _tree(used.folder)
    assert used.run(*command).code == 0
    assert _tree(used.folder) == before


@pytest.mark.parametrize("command", LISTS, ids=_words)
def test_a_list_names_the_database_it_read(command: tuple[str, ...], used: Desk) -> None:
    """Two terminals in two folders look alike."""
    answer = used.run(*command)
    assert f"{used.folder}/data/headgate.db" in answer.out + answer.err

    machine = used.run(*command, "--json")
    assert json.loads(machine.out)["object"] == "list"
    assert "headgate.db" not in machine.err


def test_a_list_names_the_gateway_it_asked(desk: Desk) -> None:
    with serving(desk) as url:
        for group in ("jobs", "dead", "batches", "requests", "alerts"):
            answer = desk.run(group, "list", "--url", url)
            assert (answer.code, url in answer.err) == (0, True), answer


def test_a_list_names_a_database_elsewhere_without_its_password(
    desk: Desk, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE__DATABASE", postgres_url)
    answer = desk.run("jobs", "list")

    assert answer.code == 0, answer.err
    assert "Read from postgres postgresql://" in answer.err


def test_without_a_key_models_are_listed_as_the_database_knows_them(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.run("keys", "create", "me", "--role", "operate")
    with serving(desk) as url:
        monkeypatch.setenv("HEADGATE__LISTEN", url.removeprefix("http://"))
        answer = desk.run("models", "list")

    assert answer.code == 0, answer.err
    assert "simulated" in answer.out
    assert f"{url} needs a key" in answer.err
    assert "HEADGATE_API_KEY" in answer.err
