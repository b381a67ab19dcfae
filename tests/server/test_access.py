"""The door with keys: who is let in, as whom, how often, and how soon a revoked key is refused everywhere."""

import importlib
import logging
import string
import timeit
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Figure
from server.access_stage import Door, Make, at_the_door, bearer, sqlite

from headgate.core.access import Action, Role
from headgate.core.call import Lane
from headgate.core.errors import (
    HeadgateError,
    ModelNotAllowed,
    NotAllowed,
    RateLimited,
    StoreUnavailable,
    Unauthorized,
)
from headgate.core.key_text import new_key_text
from headgate.server.access import KeyedAccess
from headgate.server.errors import read_error

UNKNOWN = new_key_text(b"\xff" * 24)
MOST_ADMIT_US = 20.0
"""Around 3 on a quiet machine; tests share theirs."""


@pytest.fixture
def store(tmp_path: Path) -> Make:
    return sqlite(tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "sqlite":
        return sqlite(tmp_path)
    url = request.getfixturevalue("postgres_url")
    adapter: Any = importlib.import_module("headgate.stores.postgres").PostgresStore
    return lambda world: adapter(url, clock=world.clock, new_id=str)


def refusal(act: Callable[..., object], *asked: object) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        act(*asked)
    return caught.value


def test_without_keys_everybody_is_local(store: Make) -> None:
    """Nobody else can reach us then; what they bring as a key does not matter."""

    async def test(door: Door) -> None:
        for headers in ([], bearer("sk-whatever"), [*bearer("a"), *bearer("b")]):
            caller = door.access.admit(headers, Action.OPERATE)
            assert (caller.tenant, caller.lane, caller.may_use("any")) == ("local", Lane.INTERACTIVE, True)
            caller.check_model("any")
            caller.used(5)
            caller.leave()
        assert not door.access.has_keys

    at_the_door(store, test)


@pytest.mark.parametrize(
    "header",
    [
        (b"origin", b"https://evil.example"),
        (b"origin", b"null"),
        (b"origin", b"http://localhost:3000"),
        (b"origin", b"http://localhost"),
        (b"sec-fetch-site", b"cross-site"),
        (b"sec-fetch-site", b"same-site"),
        (b"host", b"evil.example:8400"),
        (b"host", b"127.0.0.1.evil.example"),
        (b"host", b""),
    ],
)
def test_without_keys_no_web_page_is_let_in(store: Make, header: tuple[bytes, bytes]) -> None:
    """A site that this machine's browser shows could spend; with a key, who sends what decides nothing."""

    async def test(door: Door) -> None:
        error = refusal(door.access.admit, [(b"host", b"localhost:8400"), header], Action.CALL)
        assert (read_error(error).status, error.code) == (403, "not_allowed")
        text = await door.key()
        door.access.admit([*bearer(text), header], Action.CALL)

    at_the_door(store, test)


@pytest.mark.parametrize(
    "host", [b"localhost", b"LocalHost:8400", b"127.0.0.1:8400", b"[::1]", b"[::1]:8400"]
)
def test_without_keys_programs_of_this_machine_and_the_gateways_own_pages_are_let_in(
    store: Make, host: bytes
) -> None:
    async def test(door: Door) -> None:
        for site in (b"none", b"same-origin"):
            door.access.admit([(b"host", host), (b"sec-fetch-site", site)], Action.CALL)
        door.access.admit([(b"origin", b"http://" + host), (b"host", host)], Action.CALL)

    at_the_door(store, test)


def test_the_first_key_closes_the_door_and_the_last_does_not_open_it(store: Make) -> None:
    """Revoking the last key must shut everybody out, not let everybody in; a restart changes nothing."""

    async def test(door: Door) -> None:
        text = await door.key(tenant="acme", lane=Lane.BATCH)
        caller = door.admit(text)
        assert (caller.tenant, caller.lane) == ("acme", Lane.BATCH)
        assert isinstance(refusal(door.access.admit, [], Action.LOOK), Unauthorized)
        await door.revoke_elsewhere(text)
        await door.access.refresh()
        again = KeyedAccess(door.store, door.world.clock)
        await again.refresh()
        for access in (door.access, again):
            assert access.has_keys
            assert isinstance(refusal(access.admit, [], Action.LOOK), Unauthorized)

    at_the_door(store, test)


def test_who_was_let_in_stays_only_as_long_as_their_key(store: Make) -> None:
    """A session outlives its login, and must not outlive the key; another process may have revoked it."""

    async def test(door: Door) -> None:
        nobody = door.access.admit([], Action.LOOK)
        assert door.access.still_admits(nobody)
        expires_at = door.world.clock.utc() + timedelta(seconds=30)
        expiring, leaving, staying = await door.key(expires_at=expires_at), await door.key(), await door.key()
        callers = [door.admit(text) for text in (expiring, leaving, staying)]
        assert not door.access.still_admits(nobody)
        assert all(map(door.access.still_admits, callers))
        await door.world.clock.sleep(30)
        await door.revoke_elsewhere(leaving)
        await door.world.clock.sleep(5)
        assert [door.access.still_admits(caller) for caller in callers] == [False, False, True]

    at_the_door(store, test)


def test_unknown_expired_and_revoked_sound_the_same(store: Make) -> None:
    """Down to the body that is sent; only a mistyped key is told apart, which needs no look-up."""

    async def test(door: Door) -> None:
        expiring = await door.key(expires_at=door.world.clock.utc() + timedelta(seconds=30))
        revoked = await door.key()
        door.admit(expiring)
        door.admit(revoked)
        await door.revoke_elsewhere(revoked)
        await door.world.clock.sleep(29.5)
        door.admit(expiring)
        await door.world.clock.sleep(0.5)
        errors = [refusal(door.admit, text) for text in (UNKNOWN, expiring, revoked)]
        assert {type(error) for error in errors} == {Unauthorized}
        assert len({read_error(error) for error in errors}) == 1
        mistyped = refusal(door.admit, UNKNOWN[:-1] + "!")
        assert isinstance(mistyped, Unauthorized)
        assert "not one of this gateway's keys" in str(mistyped)
        assert read_error(mistyped).status == 401

    at_the_door(store, test)


def test_a_key_revoked_by_another_process_is_refused_within_5_s(each_store: Make) -> None:
    """And one that was made there is welcome within the same time. No request asks the database."""

    async def test(door: Door) -> None:
        text = await door.key()
        door.admit(text).leave()
        await door.revoke_elsewhere(text)
        before = door.world.clock.now()
        door.admit(text).leave()
        assert door.world.clock.now() == before
        await door.world.clock.sleep(5.0)
        assert isinstance(refusal(door.admit, text), Unauthorized)

    at_the_door(each_store, test)


def test_while_the_store_is_away_the_keys_known_last_stay_in_force(store: Make) -> None:
    """And the door goes on asking: it hears of a change as soon as the store is back."""

    async def test(door: Door) -> None:
        text = await door.key()
        real, away = door.store.access_marker, True

        async def marker() -> Any:
            if away:
                raise StoreUnavailable("the disk is gone")
            return await real()

        door.store.access_marker = marker  # type: ignore[method-assign]  # the network, as it were
        await door.revoke_elsewhere(text)
        await door.world.clock.sleep(60.0)
        door.admit(text)
        away = False
        await door.world.clock.sleep(5.0)
        assert isinstance(refusal(door.admit, text), Unauthorized)

    at_the_door(store, test)


def test_a_bug_while_looking_does_not_end_the_looking(store: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise revoked keys would work for ever, and nobody would know."""

    async def test(door: Door) -> None:
        text = await door.key()
        real, broken = door.store.access_keys, True

        async def keys(**which: Any) -> Any:
            if broken:
                raise RuntimeError("nobody foresaw this")
            return await real(**which)

        door.store.access_keys = keys  # type: ignore[method-assign]  # the network, as it were
        await door.elsewhere.revoke_access_key("key_none", now=0.0)
        [kept] = await door.elsewhere.access_keys()
        await door.elsewhere.revoke_access_key(kept.key.id, now=1.0)
        await door.world.clock.sleep(5.0)
        door.admit(text)
        broken = False
        await door.world.clock.sleep(5.0)
        assert isinstance(refusal(door.admit, text), Unauthorized)

    at_the_door(store, test)
    assert "the keys could not be read" in caplog.text


def test_roles_decide_before_anything_is_counted(store: Make) -> None:
    async def test(door: Door) -> None:
        reader = await door.key(role=Role.READ, requests_per_minute=1)
        for action in (Action.CALL, Action.OPERATE):
            error = refusal(door.admit, reader, action)
            assert type(error) is NotAllowed
            assert (read_error(error).status, error.code) == (403, "not_allowed")
        door.admit(reader, Action.WATCH)
        assert isinstance(refusal(door.admit, reader, Action.WATCH), RateLimited)

    at_the_door(store, test)


def test_a_model_outside_the_keys_list_is_403(store: Make) -> None:
    """Whether it exists or not; the message names what the key may use."""

    async def test(door: Door) -> None:
        caller = door.admit(await door.key(models=("summary", "ollama/*")))
        caller.check_model("summary")
        caller.check_model("ollama/gemma")
        assert (caller.may_use("ollama/x"), caller.may_use("gpt")) == (True, False)
        error = refusal(caller.check_model, "gpt")
        assert type(error) is ModelNotAllowed
        assert read_error(error).status == 403
        assert "summary, ollama/*" in str(error)

    at_the_door(store, test)


def test_requests_per_minute_in_virtual_time(store: Make) -> None:
    """The fourth is refused with the time it takes, and let in after it; other keys are not touched."""

    async def test(door: Door) -> None:
        text, other = await door.key(requests_per_minute=3), await door.key()
        for _ in range(3):
            door.admit(text).leave()
            await door.world.clock.sleep(1.0)
        error = refusal(door.admit, text)
        assert isinstance(error, RateLimited)
        assert error.retry_after_s == pytest.approx(57.0, abs=0.01)
        assert (b"retry-after", b"58") in read_error(error).headers()
        door.admit(other).leave()
        await door.world.clock.sleep(error.retry_after_s)
        door.admit(text).leave()

    at_the_door(store, test)


def test_tokens_and_parallel_requests(store: Make) -> None:
    async def test(door: Door) -> None:
        text = await door.key(tokens_per_minute=1000, parallel=2)
        first, second = door.admit(text), door.admit(text)
        assert isinstance(refusal(door.admit, text), RateLimited)
        first.used(1500)
        first.leave()
        error = refusal(door.admit, text)
        assert "1,000 tokens a minute" in str(error)
        second.leave()
        await door.world.clock.sleep(60.0)
        door.admit(text)

    at_the_door(store, test)


def test_what_was_used_is_remembered_when_other_keys_change(store: Make) -> None:
    """A new table is no new minute, and no new set of parallel requests."""

    async def test(door: Door) -> None:
        text = await door.key(requests_per_minute=2, parallel=2)
        door.admit(text)
        other = await door.key()
        door.admit(text)
        assert isinstance(refusal(door.admit, text), RateLimited)
        await door.revoke_elsewhere(other)
        await door.access.refresh()
        assert isinstance(refusal(door.admit, text), RateLimited)

    at_the_door(store, test)


def test_both_carriers_meet_the_same_limits(store: Make) -> None:
    """Another gateway forgot one of them once."""

    async def test(door: Door) -> None:
        text = await door.key(requests_per_minute=1, models=("summary",))
        door.access.admit([(b"x-api-key", text.encode())], Action.CALL)
        for headers in (bearer(text), [(b"x-api-key", text.encode())]):
            error = refusal(door.access.admit, headers, Action.CALL)
            assert isinstance(error, RateLimited)

    at_the_door(store, test)


def test_a_key_that_begins_or_ends_like_a_known_one_is_nobodys(store: Make) -> None:
    """Only the whole key counts, also right after the real one was seen."""

    async def test(door: Door) -> None:
        text = await door.key()
        door.admit(text).leave()
        cut = [part for length in range(1, len(text)) for part in (text[:length], text[length:])]
        changed = [
            text[:place] + letter + text[place + 1 :]
            for place in range(len(text))
            for letter in string.ascii_letters
            if letter != text[place]
        ]
        for presented in [*cut, *changed, text + text, text + "x", text.swapcase()]:
            assert isinstance(refusal(door.admit, presented), Unauthorized), presented
        door.admit(text).leave()

    at_the_door(store, test)


def test_no_key_is_in_any_word_of_ours(store: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Errors, bodies, logs down to DEBUG, and whatever is printed of the parts."""
    caplog.set_level(logging.DEBUG)
    words: list[str] = []

    async def test(door: Door) -> None:
        text = await door.key(models=("summary",), requests_per_minute=1, role=Role.CALL)
        caller = door.admit(text)
        for presented, action in (
            (text, Action.CALL),
            (text, Action.WATCH),
            (UNKNOWN, Action.CALL),
            (text[:-1], Action.CALL),
        ):
            error = refusal(door.admit, presented, action)
            words.extend((str(error), repr(error), read_error(error).body.decode()))
        words.append(str(refusal(caller.check_model, "gpt")))
        twice = [*bearer(text), (b"x-api-key", text.encode())]
        words.append(str(refusal(door.access.admit, twice, Action.CALL)))
        words.extend(repr(thing) for thing in (caller, door.access, await door.store.access_keys()))
        await door.world.clock.sleep(5.0)

    at_the_door(store, test)
    assert "hg_" not in "\n".join([*words, caplog.text])


def test_admission_costs_microseconds(figure: Figure, store: Make) -> None:
    """Credential, table, role, expiry, all three limits: the whole way in and out."""
    ordinary = [(f"x-header-{number}".encode(), b"value") for number in range(8)]

    async def test(door: Door) -> None:
        far = door.world.clock.utc() + timedelta(days=9)
        text = await door.key(requests_per_minute=10**9, tokens_per_minute=10**9, parallel=9, expires_at=far)
        headers = [*ordinary, *bearer(text)]

        def once() -> None:
            caller = door.access.admit(headers, Action.CALL)
            caller.used(100)
            caller.leave()

        best_us = min(timeit.repeat(once, number=5000, repeat=7)) / 5000 * 1e6
        figure("one admission by key", f"{best_us:.1f} µs (at most {MOST_ADMIT_US:g})")
        assert best_us <= MOST_ADMIT_US

    at_the_door(store, test)


def test_whom_the_door_turns_away_is_counted_by_why(store: Make) -> None:
    """A flood of wrong keys, or a key that hit its limits, must show somewhere."""

    async def test(door: Door) -> None:
        narrow = await door.key(models=("summary",), requests_per_minute=1)
        door.admit(narrow)
        refusal(door.admit, narrow)
        refusal(door.admit, UNKNOWN)
        refusal(door.admit, "sk-other")
        refusal(door.admit, await door.key(role=Role.READ))
        refusal(door.admit(await door.key(models=("summary",))).check_model, "other")
        assert door.access.refusals == {
            "rate_limited": 1,
            "unauthorized": 2,
            "not_allowed": 1,
            "model_not_allowed": 1,
        }

    at_the_door(store, test)
