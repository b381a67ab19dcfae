"""`headgate keys` as an operator meets it: made once and shown once, listed without secrets, taken back."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from cli.command_stage import Desk

from headgate.core.key_text import is_key_text


def make(desk: Desk, name: str, *options: str) -> str:
    answer = desk.run("keys", "create", name, *options)
    assert answer.code == 0, answer.err
    return answer.out.removesuffix("\n")


def test_a_new_key_stands_alone_on_stdout(desk: Desk) -> None:
    """So that it can be piped; what it is stands on stderr, without it."""
    answer = desk.run("keys", "create", "search box")

    assert answer.code == 0
    assert is_key_text(answer.out.removesuffix("\n").encode())
    assert "search box" in answer.err
    assert "cannot be shown again" in answer.err
    assert "hg_" not in answer.err


@pytest.mark.parametrize(
    ("role", "meaning"),
    [
        (
            "call",
            "may call models, submit jobs and see its own; it opens neither the whole dashboard nor commands",
        ),
        ("read", "may see the dashboard and what commands list; it cannot call models or change anything"),
        (
            "operate",
            "may do everything: log in to the dashboard with it; commands take it from HEADGATE_API_KEY",
        ),
    ],
)
def test_a_new_key_is_shown_with_what_its_role_may_do(desk: Desk, role: str, meaning: str) -> None:
    assert meaning in " ".join(desk.run("keys", "create", "app", "--role", role).err.split())


@pytest.mark.parametrize("role", ["call", "read"])
def test_a_first_key_that_may_not_operate_comes_with_a_warning(desk: Desk, role: str) -> None:
    first = desk.run("keys", "create", "app", "--role", role)
    assert first.code == 0
    assert "This is the first key: from now on nothing gets in without one" in first.err
    assert "headgate keys create NAME --role operate" in first.err

    second = desk.run("keys", "create", "app", "--role", role)
    assert "This is the first key" not in second.err
    assert "No key may operate this gateway. Make one: headgate keys create NAME --role operate" in second.err


def test_where_a_key_may_operate_nothing_is_warned_of(desk: Desk) -> None:
    """The operator's own, first or later; one that was revoked does not count."""
    assert "may operate" not in desk.run("keys", "create", "me", "--role", "operate").err
    assert "may operate" not in desk.run("keys", "create", "app").err
    desk.run("keys", "revoke", "me")
    assert "No key may operate this gateway." in desk.run("keys", "create", "other").err


def test_nothing_that_is_kept_or_shown_later_has_the_key(desk: Desk) -> None:
    """Neither the lists nor any file of the data folder, the database's own log included."""
    key = make(desk, "app")

    for words in (("keys", "list"), ("keys", "list", "--json"), ("keys", "revoke", "app")):
        answer = desk.run(*words)
        assert answer.code == 0
        assert key not in answer.out + answer.err
        assert key[-4:] in answer.out
        assert key[-6:] not in answer.out
    files = [file for file in (desk.folder / "data").rglob("*") if file.is_file()]
    assert files
    assert not [file for file in files if key[3:].encode() in file.read_bytes()]


def test_the_limits_in_force_are_told_when_a_key_is_made_and_in_the_list(desk: Desk) -> None:
    """Also where there are none: a key that may use everything is easily made by mistake."""
    free = desk.run("keys", "create", "free").err
    some = desk.run("keys", "create", "some", "--rpm", "1200", "--parallel", "4").err

    assert "Its limits: none of its own." in free
    assert (
        "The limits of its tenant, local: while others wait, half of an upstream's slots and queue;"
        " 10,737.4 MB stored (limits.tenant_bytes)."
    ) in " ".join(free.split())
    assert "Its limits: 1,200 requests/min, no limit on tokens/min, 4 parallel." in some
    _, first, second = desk.run("keys", "list", columns=300).out.splitlines()
    assert first.rstrip().endswith("1,200 requests/min; 4 parallel")
    assert second.rstrip().endswith("no limits")


def test_the_table_and_its_json_tell_the_terms(desk: Desk) -> None:
    key = make(
        desk,
        "app",
        *("--tenant", "acme", "--role", "read", "--models", "summary,ollama/*", "--models", "gpt"),
        *("--lane", "batch", "--rpm", "60", "--tpm", "100000", "--parallel", "4", "--expires", "90d"),
    )
    heading, row = desk.run("keys", "list").out.splitlines()
    assert heading.split() == ["id", "name", "ends", "in", "state", "role", "tenant", "age", "terms"]
    assert re.match(
        rf"key_\w+ +app +…{key[-4:]} +active +read +acme +\ds +summary, ollama/\*, gpt; lane", row
    )
    assert (
        "60 requests/min; 100,000 tokens/min; 4 parallel; until" in desk.run("keys", "list", columns=300).out
    )
    [told] = desk.run("keys", "list", "--json").json["data"]
    assert (told["name"], told["tenant"], told["role"], told["lane"]) == ("app", "acme", "read", "batch")
    assert told["models"] == ["summary", "ollama/*", "gpt"]
    assert (told["requests_per_minute"], told["tokens_per_minute"], told["parallel"]) == (60, 100_000, 4)
    left = datetime.fromisoformat(told["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < left <= timedelta(days=90)
    assert "digest" not in told


def test_a_store_without_keys_says_what_that_means(desk: Desk) -> None:
    desk.submit("echo", 1)
    answer = desk.run("keys", "list")

    assert (answer.code, answer.err) == (0, f"Read from {desk.folder}/data/headgate.db\n")
    assert "only this machine may connect" in answer.out
    assert "headgate keys create" in answer.out
    assert desk.run("keys", "list", "--tenant", "acme").out == "No keys match.\n"
    assert desk.run("keys", "list", "--json").json == {
        "object": "list",
        "data": [],
        "has_more": False,
        "last_id": None,
    }


def test_a_key_is_revoked_by_any_of_its_words(desk: Desk) -> None:
    """Its id, its name, its last four characters; or the key itself, when somebody found it in the open."""
    keys = [make(desk, name) for name in ("one", "two", "three", "four")]
    ids = {key["name"]: key["id"] for key in desk.run("keys", "list", "--json").json["data"]}
    for word in (ids["one"], "two", keys[2][-4:], keys[3]):
        answer = desk.run("keys", "revoke", word)
        assert answer.code == 0, answer.err
        assert "is revoked" in answer.out
        assert "hg_" not in answer.out
    states = [key["revoked_at"] is not None for key in desk.run("keys", "list", "--json").json["data"]]
    assert states == [True] * 4
    again = desk.run("keys", "revoke", "two")
    assert again.code == 2
    assert "is revoked already" in again.err


def test_a_word_for_several_revokes_none(desk: Desk) -> None:
    for tenant in ("local", "acme"):
        make(desk, "app", "--tenant", tenant)
    answer = desk.run("keys", "revoke", "app")
    assert answer.code == 2
    assert "2 keys answer to 'app'" in answer.err
    assert [key["revoked_at"] for key in desk.run("keys", "list", "--json").json["data"]] == [None, None]
    assert desk.run("keys", "revoke", "app", "--tenant", "acme").code == 0
    [mine] = desk.run("keys", "list", "--json", "--tenant", "local").json["data"]
    assert mine["revoked_at"] is None


def test_another_tenants_key_looks_like_none(desk: Desk) -> None:
    make(desk, "app", "--tenant", "acme")

    hidden = desk.run("keys", "revoke", "app", "--tenant", "local")
    missing = desk.run("keys", "revoke", "pap", "--tenant", "local")
    assert (hidden.code, missing.code) == (2, 2)
    assert hidden.err == missing.err.replace("pap", "app")


@pytest.mark.parametrize("word", ["nope", "hg_" + "0" * 39, "hg_half"])
def test_a_key_that_is_not_there_is_exit_code_2_and_never_repeated(desk: Desk, word: str) -> None:
    """A name is repeated in the message; what looks like a key is not."""
    make(desk, "app")
    answer = desk.run("keys", "revoke", word)

    assert answer.code == 2
    assert "headgate keys list shows them all" in answer.err
    assert "hg_" not in answer.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("app", "--models", "a*b"), "* may only stand at the end"),
        (("app", "--models", ""), "models must be"),
        (("app", "--rpm", "0"), "--rpm"),
        (("app", "--expires", "tomorrow"), "how long from now: 12h, 90d"),
        (("app", "--expires", "2020-01-01T00:00:00Z"), "cannot expire before"),
        (("app", "--role", "admin"), "--role"),
        (("",), "name must be"),
        (("hg_pasted",), "cannot begin with hg_"),
    ],
)
def test_terms_that_make_no_sense_are_exit_code_2(desk: Desk, options: tuple[str, ...], message: str) -> None:
    answer = desk.run("keys", "create", *options)

    assert answer.code == 2
    assert message in answer.err
    assert answer.out == ""
