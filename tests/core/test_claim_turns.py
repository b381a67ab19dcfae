"""Whose jobs are claimed next: tenants in turns, then models, and half of the places for one of several."""

from collections import Counter
from collections.abc import Mapping

import hypothesis.strategies as st
from hypothesis import given

from headgate.core.claim_turns import ClaimTurns
from headgate.core.ports.claims import Want

Lines = Mapping[str, tuple[str, ...]]
names = st.text(alphabet="abcZ", min_size=1, max_size=2)


def deal(
    turns: ClaimTurns,
    lines: Lines,
    free: int,
    *,
    places: Mapping[str, int] | None = None,
    running: Mapping[str, int] | None = None,
    held: Mapping[str, int] | None = None,
) -> list[Want]:
    room = places or {}
    return turns.deal(
        lines, free, places=lambda model: room.get(model, 99), running=running or {}, held=held or {}
    )


def by_tenant(wants: list[Want]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for want in wants:
        counts[want.tenant] += want.places
    return dict(counts)


def test_tenants_share_places_equally_however_many_models_one_has() -> None:
    crowd = tuple(f"m{number}" for number in range(200))

    wants = deal(ClaimTurns(64), {"a": crowd, "b": ("zzz",)}, 8)

    assert by_tenant(wants) == {"a": 4, "b": 4}


def test_single_places_go_round_tenants_and_their_models() -> None:
    """With one place at a time nobody's name is better than another's."""
    turns = ClaimTurns(64)
    lines = {"a": ("x", "y", "z"), "b": ("x",), "c": ("x", "y")}

    dealt = [deal(turns, lines, 1)[0] for _ in range(9)]

    assert [want.tenant for want in dealt] == ["a", "b", "c"] * 3
    assert [want.model for want in dealt if want.tenant == "a"] == ["x", "y", "z"]
    assert [want.model for want in dealt if want.tenant == "c"] == ["x", "y", "x"]


def test_a_model_gets_no_more_than_it_takes_over_all_tenants() -> None:
    wants = deal(ClaimTurns(64), {"a": ("m",), "b": ("m",)}, 30, places={"m": 5}, running={"m": 2})

    assert sum(by_tenant(wants).values()) == 3


def test_one_tenant_of_several_holds_at_most_half_of_the_places() -> None:
    both = {"a": ("m",), "b": ("m",)}

    assert by_tenant(deal(ClaimTurns(10), both, 4, held={"a": 5, "b": 1})) == {"b": 4}
    assert by_tenant(deal(ClaimTurns(10), both, 9, held={"a": 1})) == {"a": 4, "b": 5}
    assert by_tenant(deal(ClaimTurns(1), both, 1)) == {"a": 1}


def test_a_tenant_alone_may_hold_all() -> None:
    assert by_tenant(deal(ClaimTurns(10), {"a": ("m",)}, 3, held={"a": 7})) == {"a": 3}


def test_jobs_that_cannot_run_here_keep_no_places_from_others() -> None:
    """Of a model that is paused, held or unknown: nobody knows when they may run."""
    lines = {"a": ("m",), "b": ("paused",)}

    assert by_tenant(deal(ClaimTurns(10), lines, 5, places={"paused": 0}, held={"a": 5})) == {"a": 5}


def test_jobs_whose_model_is_full_keep_their_tenants_half() -> None:
    lines = {"a": ("m",), "b": ("full",)}

    wants = deal(ClaimTurns(10), lines, 5, places={"full": 2}, running={"full": 2}, held={"a": 5, "b": 2})

    assert wants == []


@given(
    lines=st.dictionaries(names, st.lists(names, min_size=1, max_size=4, unique=True).map(tuple), max_size=6),
    places=st.dictionaries(names, st.integers(0, 5)),
    free=st.integers(0, 12),
    rounds=st.integers(1, 6),
)
def test_no_bound_is_passed_and_no_place_left_empty(
    lines: dict[str, tuple[str, ...]], places: dict[str, int], free: int, rounds: int
) -> None:
    turns = ClaimTurns(12)
    for _ in range(rounds):
        wants = turns.deal(lines, free, places=lambda model: places.get(model, 3), running={}, held={})
        given_to = by_tenant(wants)
        models: Counter[str] = Counter()
        for want in wants:
            assert want.model in lines[want.tenant]
            models[want.model] += want.places
        assert len({(want.tenant, want.model) for want in wants}) == len(wants)
        assert all(count <= places.get(model, 3) for model, count in models.items())
        assert sum(given_to.values()) <= free
        able = {tenant for tenant in lines if any(places.get(model, 3) for model in lines[tenant])}
        most = 6 if len(able) > 1 else 12
        assert all(count <= most for count in given_to.values())
        if sum(given_to.values()) < free:
            for tenant in able:
                full = all(models[model] >= places.get(model, 3) for model in lines[tenant])
                assert full or given_to.get(tenant, 0) >= most
