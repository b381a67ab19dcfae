"""Commands that meet something else than a gateway, or a wrong URL: a line and an exit code, never a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from cli.command_stage import Desk
from cli.test_outbox_commands import NOBODY, gateway
from client.stub import Fault, Stub

COMMANDS = [
    ("models", "list"),
    ("models", "pause", "m"),
    ("models", "resume", "m"),
    ("requests", "list"),
    ("requests", "show", "r"),
    ("jobs", "list"),
    ("jobs", "submit", "t"),
    ("batches", "list"),
]
BODIES = [
    b'{"hello": 1}',
    b"[1, 2]",
    b'{"id": "job_x"}',
    b'{"data": [{"id": 1}], "upstreams": [{}]}',
    b"<html>",
]


@pytest.mark.parametrize("body", BODIES)
def test_a_body_that_is_none_of_ours_is_told_in_a_line(desk: Desk, body: bytes) -> None:
    """`Desk.run` fails at a traceback."""
    with gateway(Stub(instead=(200, body))) as url:
        for command in COMMANDS:
            answer = desk.run(*command, "--url", url)
            assert (answer.code, "not as a headgate does" in answer.err) == (2, True), (command, answer)


@pytest.mark.parametrize("url", ["ftp://h", "h:8400", "http://me:s3cret@h", "http://h?key=s3cret"])
def test_a_wrong_url_is_wrong_input(desk: Desk, url: str) -> None:
    for command in (*COMMANDS, ("outbox", "flush")):
        answer = desk.run(*command, "--url", url)
        assert (answer.code, "s3cret" in answer.err) == (2, False), (command, answer)


def test_a_proxy_whose_gateway_restarts_means_later(desk: Desk) -> None:
    stub = Stub(instead=(503, b"<html>no server is available</html>"))
    with gateway(stub) as url:
        for command in (("models", "list"), ("requests", "list")):
            assert desk.run(*command, "--url", f"{url}/v1").code == 4
        stub.instead = (429, b"slow down")
        assert "try again in 7 s" in desk.run("models", "list", "--url", url).err


def test_a_gateway_that_does_not_run_is_told_with_how_to_start_it(desk: Desk) -> None:
    answer = desk.run("requests", "list", "--url", NOBODY)

    assert answer.code == 4
    assert f"{NOBODY} could not be reached" in answer.err
    assert "Start it (headgate serve), or name another one with --url or HEADGATE_URL" in answer.err
    assert "Nothing is wrong" not in answer.err


def test_what_failed_earlier_is_told_by_every_flush(desk: Desk) -> None:
    """A timer that runs it must not see success while somebody is needed."""
    desk.run("outbox", "add", "chat", "1")
    stub = Stub(otherwise=lambda _: Fault.WRONG)
    with gateway(stub) as url:
        assert desk.run("outbox", "flush", "--url", url).code == 1
        again = desk.run("outbox", "flush", "--url", url)
    assert (again.code, again.out) == (1, "0 sent, 0 failed, 0 waiting, 1 failed earlier\n")


def test_only_adding_makes_an_outbox(desk: Desk) -> None:
    for command in (("list",), ("flush", "--url", NOBODY), ("retry", "1"), ("discard", "1")):
        answer = desk.run("outbox", *command, "--file", "typo.db")
        assert (answer.code, "no outbox typo.db" in answer.err) == (2, True)
    assert not Path("typo.db").exists()
    assert desk.run("outbox", "add", "", "--file", "typo.db").code == 2
    assert desk.run("outbox", "add", "t", "--options", '{"priorty": 1}').code == 2


INTERRUPTED = """
import sys

class CtrlC:
    def find_spec(self, name, *rest):
        if name == "headgate.cli.models":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from headgate.cli import main
main(["models", "list"])
"""


def test_ctrl_c_while_it_loads_is_quiet() -> None:
    """Loading takes a second: somebody who mistyped presses Ctrl-C in it."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_the_way_in_loads_nothing_that_takes_long() -> None:
    """What is loaded before `main` is not guarded by it."""
    code = (
        "import sys, headgate.cli; print([name for name in ('typer', 'rich', 'apsw') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "[]\n"
