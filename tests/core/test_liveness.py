"""Silence is judged by beats on the observer's own clock; what it could not watch counts for nothing."""

import random

from headgate.core.liveness import Beats

LEASE_S = 30.0
TICK_S = 10.0


def watched(beats: Beats, readings: list[tuple[float, dict[str, int]]]) -> list[tuple[float, str]]:
    """(when, who) for each node that was found silent; each read takes no time."""
    found = []
    for at, reading in readings:
        found += [(at, node) for node, _ in beats.read(reading, sent_at=at, at=at)]
    return found


def test_a_node_is_silent_after_a_whole_lease_with_the_same_beat() -> None:
    """Not a tick earlier, and with the beat that it had, so that the burial can check it."""
    beats = Beats(LEASE_S)
    readings = [(TICK_S * tick, {"dead": 7, "alive": tick}) for tick in range(5)]

    assert watched(beats, readings[:3]) == []
    assert beats.read({"dead": 7, "alive": 3}, sent_at=30.0, at=30.0) == [("dead", 7)]


def test_a_read_that_failed_starts_the_watch_again() -> None:
    """The store was away: nobody could renew."""
    beats = Beats(LEASE_S)
    watched(beats, [(0.0, {"n": 1}), (10.0, {"n": 1}), (20.0, {"n": 1})])
    beats.restart()

    assert watched(beats, [(30.0, {"n": 1}), (40.0, {"n": 1}), (50.0, {"n": 1})]) == []
    assert watched(beats, [(60.0, {"n": 1})]) == [(60.0, "n")]


def test_a_late_read_starts_the_watch_again() -> None:
    """The observer slept, was stopped, or waited for a store that hung. It did not watch."""
    beats = Beats(LEASE_S)

    assert watched(beats, [(0.0, {"n": 1}), (10.0, {"n": 1}), (3610.0, {"n": 1}), (3620.0, {"n": 1})]) == []


def test_the_time_that_a_read_takes_is_not_held_against_a_node() -> None:
    """The beat was the same when the read was sent, not when its answer came."""
    beats = Beats(LEASE_S)
    beats.read({"n": 1}, sent_at=0.0, at=5.0)
    for at in (15.0, 25.0):
        assert beats.read({"n": 1}, sent_at=at, at=at) == []

    assert beats.read({"n": 1}, sent_at=34.0, at=38.0) == []
    assert beats.read({"n": 1}, sent_at=44.0, at=48.0) == [("n", 1)]


def test_a_node_that_beats_again_or_is_gone_is_watched_from_the_start() -> None:
    """A beat that rises proves life; one that left may come back as another."""
    beats = Beats(LEASE_S)
    watched(beats, [(0.0, {"a": 1, "b": 1}), (10.0, {"a": 1, "b": 1}), (20.0, {"a": 2})])

    assert watched(beats, [(30.0, {"a": 2, "b": 1}), (40.0, {"a": 2, "b": 1})]) == []
    assert watched(beats, [(50.0, {"a": 2, "b": 1})]) == [(50.0, "a")]


def test_an_outage_that_all_meet_kills_no_node_and_a_death_is_noticed_within_two_leases() -> None:
    """A thousand random histories: three nodes renew by the rules, the store comes and goes, one node dies."""
    for seed in range(1000):
        rng = random.Random(seed)
        outages = sorted(
            (start, start + rng.uniform(1, 90)) for start in (rng.uniform(0, 600) for _ in range(4))
        )
        death = rng.uniform(700, 800)
        silent = history(rng, outages, death)
        assert all(node == "dying" for _, node in silent), (seed, silent)
        assert silent, seed
        first = min(at for at, _ in silent)
        assert death + LEASE_S - TICK_S <= first <= death + 2 * LEASE_S, (seed, death, first)


def history(rng: random.Random, outages: list[tuple[float, float]], death: float) -> list[tuple[float, str]]:
    """What two observers conclude while the store is away at times, until long after the third node has died."""

    def away(at: float) -> bool:
        return any(start <= at < end for start, end in outages)

    beats = {"one": 0, "two": 0, "dying": 0}
    observers = {"one": Beats(LEASE_S), "two": Beats(LEASE_S)}
    due = {name: rng.uniform(0, TICK_S) for name in beats}
    silent: list[tuple[float, str]] = []
    while min(due.values()) < 900:
        name = min(due, key=lambda one: due[one])
        at = due[name]
        if name == "dying" and at >= death:
            due[name] = 1e9
        elif away(at):
            due[name] = at + 1.0
            if name in observers:
                observers[name].restart()
        else:
            beats[name] += 1
            due[name] = at + TICK_S
            if name in observers:
                others = {node: beat for node, beat in beats.items() if node != name}
                silent += [(at, node) for node, _ in observers[name].read(others, sent_at=at, at=at)]
    return silent
