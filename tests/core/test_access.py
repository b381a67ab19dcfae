"""The rules of access keys: who may what, which models, whom a word means, where to listen."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from headgate.core.access import (
    AccessKey,
    AccessState,
    AccessTerms,
    Action,
    Role,
    check_listening,
    choose,
    is_loopback,
    issue,
    may,
)
from headgate.core.errors import InvalidRequest, SettingsError, StateConflict

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)


def a_key(key_id: str = "key_1", **changes: Any) -> AccessKey:
    return AccessKey(**{"id": key_id, "name": "app", "last_four": "abcd", "created_at": NOW, **changes})


def issued(**terms: Any) -> Any:
    return issue(
        AccessTerms(**{"name": "app", **terms}), key_id="key_1", random=bytes(24), secret=b"s", now=NOW
    )


@pytest.mark.parametrize(
    ("role", "actions"),
    [
        (Role.CALL, {Action.CALL, Action.LOOK}),
        (Role.READ, {Action.LOOK, Action.WATCH}),
        (Role.OPERATE, set(Action)),
    ],
)
def test_a_role_covers_this_and_nothing_else(role: Role, actions: set[Action]) -> None:
    """Whoever only looks cannot spend, and whoever spends does not see everybody's figures."""
    assert {action for action in Action if may(role, action)} == actions


@pytest.mark.parametrize(
    ("patterns", "model", "allowed"),
    [
        ((), "anything", True),
        (("summary",), "summary", True),
        (("summary",), "summary-large", False),
        (("summary",), "Summary", False),
        (("summary",), "", False),
        (("ollama/*",), "ollama/gemma3:4b", True),
        (("ollama/*",), "ollama/*", True),
        (("ollama/*",), "ollama", False),
        (("ollama/*",), "not-ollama/gemma", False),
        (("a", "b*"), "bee", True),
        (("*",), "anything", True),
    ],
)
def test_models_are_allowed_by_name_or_by_beginning(
    patterns: tuple[str, ...], model: str, allowed: bool
) -> None:
    assert a_key(models=patterns).may_use(model) is allowed


def test_a_key_ends_by_its_time_or_by_being_revoked() -> None:
    """The moment it expires it is not valid any more; revoked says more than expired."""
    key = a_key(expires_at=NOW + HOUR)

    assert key.state(NOW) is AccessState.ACTIVE
    assert key.state(NOW + HOUR) is AccessState.EXPIRED
    assert a_key(expires_at=NOW, revoked_at=NOW).state(NOW) is AccessState.REVOKED


def test_a_new_key_keeps_its_terms_and_shows_its_text_once() -> None:
    """Neither text nor digest stand in anything that is printed or encoded for people."""
    made = issued(models=("a",), parallel=2, tenant="acme")

    key = made.kept.key
    assert (key.models, key.parallel, key.tenant, key.created_at) == (("a",), 2, "acme", NOW)
    assert made.text.endswith(key.last_four)
    shown = f"{made!r} {made.kept!r} {key!r} {made} {msgspec.json.encode(key).decode()}"
    assert made.text not in shown
    assert made.text[3:-4] not in shown
    assert repr(made.kept.digest) not in shown
    assert "digest" not in shown


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"name": ""}, "name must be"),
        ({"name": "two\nlines"}, "name must be"),
        ({"name": "hg_pasted"}, "cannot begin with hg_"),
        ({"tenant": "\0"}, "tenant must be"),
        ({"models": ("",)}, "models must be"),
        ({"models": ("a*b",)}, r"\* may only stand at the end"),
        ({"models": ("m",) * 101}, "100 models"),
        ({"requests_per_minute": 0}, "requests_per_minute must be at least 1"),
        ({"tokens_per_minute": 10**13}, "tokens_per_minute must be"),
        ({"parallel": -1}, "parallel must be"),
        ({"expires_at": NOW}, "cannot expire before"),
    ],
)
def test_terms_that_make_no_sense_are_refused(terms: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        issued(**terms)


def test_a_key_is_meant_by_id_name_or_last_four() -> None:
    first, second = a_key("key_1", name="app", last_four="aaaa"), a_key("key_2", name="web", last_four="bbbb")
    for word in ("key_2", "web", "bbbb"):
        assert choose([first, second], word, now=NOW) is second
    with pytest.raises(InvalidRequest, match="there is no key 'nope'; headgate keys list"):
        choose([first, second], "nope", now=NOW)


def test_a_word_that_means_several_means_none() -> None:
    """Better to ask again than to take the wrong application off the air."""
    twins = [a_key("key_1", last_four="aaaa"), a_key("key_2", last_four="bbbb")]
    with pytest.raises(InvalidRequest, match=r"2 keys answer to 'app'.*key_1 \(app, …aaaa\), key_2"):
        choose(twins, "app", now=NOW)
    old = a_key("key_3", revoked_at=NOW)
    assert choose([old, twins[0]], "app", now=NOW) is twins[0]
    with pytest.raises(StateConflict, match=r"key_3 .* is revoked already"):
        choose([old], "app", now=NOW)


def test_an_id_goes_before_names() -> None:
    """A key that was named after another key's id does not hide it."""
    real, named = a_key("key_1", name="app"), a_key("key_2", name="key_1")
    assert choose([named, real], "key_1", now=NOW) is real


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1", "localhost", "LocalHost", "::1", "[::1]", "::ffff:127.0.0.1"]
)
def test_without_keys_the_loopback_is_open_and_it_is_said(host: str) -> None:
    told = check_listening(host, has_keys=False)

    assert is_loopback(host)
    assert told is not None
    assert "headgate keys create" in told
    assert check_listening(host, has_keys=True) is None


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.5", "example.org", "localhost.example.org", "::ffff:8.8.8.8"]
)
def test_without_keys_nothing_else_is_listened_on(host: str) -> None:
    """The message says what to do; a name may lead anywhere, so it does not count as this machine."""
    with pytest.raises(SettingsError, match=r"no keys.*headgate keys create NAME.*127\.0\.0\.1"):
        check_listening(host, has_keys=False)
    assert check_listening(host, has_keys=True) is None
