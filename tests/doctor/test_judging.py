"""What a doctor makes of what was seen: pure decisions, so odd machines need not be at hand."""

import errno
import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import Sighting
from headgate.doctor.finding import State
from headgate.doctor.folder import Folder, judge_folder, look_at_folder
from headgate.doctor.machine import UNLIMITED, judge_clock, judge_files, judge_proxies
from headgate.doctor.ports import taken, who_listens
from headgate.doctor.store import judge_store
from headgate.doctor.upstreams import Asked, judge_failure, judge_sighting

NOW = datetime(2026, 5, 1, tzinfo=UTC)
ASKED = Asked("summary", "gpt-5")


@pytest.mark.parametrize(
    ("kind", "sqlite", "state"),
    [
        ("ext4", True, State.OK),
        ("nfs4", True, State.FAIL),
        ("nfs4", False, State.OK),
        ("tmpfs", True, State.WARN),
        ("overlay", True, State.WARN),
    ],
)
def test_a_disk_is_judged_by_what_the_database_needs(kind: str, sqlite: bool, state: State) -> None:
    folder = Folder(path="/data", kind=kind, free_bytes=10**12)
    assert judge_folder(folder, sqlite=sqlite).state is state


def test_a_full_disk_and_one_that_refuses() -> None:
    assert judge_folder(Folder(path="/d", kind="ext4", free_bytes=10**8), sqlite=True).state is State.WARN
    refused = judge_folder(Folder(path="/d", trouble="Permission denied"), sqlite=True)
    assert (refused.state, "Permission denied" in refused.found) == (State.FAIL, True)


def test_room_matters_more_than_the_kind_of_disk() -> None:
    """In a container every folder is an overlay; who is sent here by a full disk must read about the disk."""
    full = judge_folder(Folder(path="/d", kind="overlay", free_bytes=10**8), sqlite=True)
    assert full.advice.startswith("make room")


def test_looking_at_a_folder_leaves_nothing_there(tmp_path: Path) -> None:
    folder = look_at_folder(tmp_path / "not" / "yet")
    assert (folder.trouble, folder.free_bytes > 0) == ("", True)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    assert look_at_folder(tmp_path / "file").trouble


@pytest.mark.parametrize(
    ("limit", "state"),
    [(UNLIMITED, State.OK), (20_000, State.OK), (1024, State.WARN), (128, State.FAIL)],
)
def test_open_files_are_held_against_the_connections(limit: int, state: State) -> None:
    assert judge_files(limit, 10_000).state is state


def test_a_clock_behind_our_own_files_is_wrong() -> None:
    assert judge_clock(NOW, NOW + timedelta(hours=1)).state is State.WARN
    assert judge_clock(NOW, NOW - timedelta(days=9)).state is State.OK
    assert judge_clock(NOW, None).state is State.OK


def test_proxies_are_told_without_their_passwords() -> None:
    told = judge_proxies({"HTTPS_PROXY": "http://ann:secret@proxy:3128"})
    assert (told.state, told.found) == (State.OK, "https through proxy:3128")
    assert judge_proxies({"http_proxy": "http://proxy:3128"}).state is State.WARN
    assert judge_proxies({"https_proxy": "socks5://proxy"}).state is State.FAIL
    assert judge_proxies({}).found == "none"


def test_a_database_s_clock_that_is_off_is_told() -> None:
    assert judge_store("postgres x", 3, 0.01).found.endswith("agrees with ours")
    late = judge_store("postgres x", 3, -30.0)
    assert (late.state, "30.0 s behind ours" in late.found) == (State.WARN, True)


def test_what_an_upstream_said() -> None:
    assert judge_sighting(ASKED, Sighting(has_model=True)).state is State.OK
    assert judge_sighting(ASKED, Sighting(has_model=None, remark="it lists no models")).state is State.OK
    missing = judge_sighting(ASKED, Sighting(has_model=False, remark="ollama pull gpt-5"))
    assert (missing.state, missing.advice) == (State.FAIL, "ollama pull gpt-5")
    family = judge_sighting(Asked("openai/*", None), Sighting(has_model=False, models=("a", "b")))
    assert (family.state, family.found) == (State.OK, "answers, 2 models there")
    wrong = judge_failure(ASKED, Failure(kind=FailureKind.MISCONFIGURED, message="401"))
    assert (wrong.state, "key" in wrong.advice) == (State.FAIL, True)


def test_who_has_a_port() -> None:
    with socket.socket() as taker:
        taker.bind(("127.0.0.1", 0))
        taker.listen()
        port = taker.getsockname()[1]
        assert taken("127.0.0.1", port) == "it is taken"
        assert f"pid {os.getpid()} (" in (who_listens(port) or "")
    assert taken("127.0.0.1", port) is None
    assert who_listens(port) is None
    assert taken("203.0.113.7", 8400) not in {None, "it is taken"}, errno.EADDRNOTAVAIL
