"""`hedge` of a model: what a file may say about second attempts, and what it is told otherwise."""

from collections.abc import Mapping

import pytest
from settings.settings_stage import loaded, mistakes_in

from headgate.core.hedging import HedgeRules

WHERE = "models.m.hedge"


def _file(hedge: str) -> str:
    return f"models: {{m: {{upstreams: [{{provider: cloud}}], hedge: {hedge}}}}}"


def _read(hedge: str, env: Mapping[str, str] | None = None) -> HedgeRules | None:
    return loaded(_file(hedge), env).models["m"].hedge


def _mistakes(hedge: str, env: Mapping[str, str] | None = None) -> list[str]:
    return mistakes_in(_file(hedge), env)


def test_without_it_there_are_no_second_attempts() -> None:
    assert loaded("models: {m: {upstreams: [{provider: cloud}]}}").models["m"].hedge is None
    assert _read("null") is None


def test_an_empty_section_means_its_defaults() -> None:
    assert _read("{}") == HedgeRules(after="p95", share=0.05)


@pytest.mark.parametrize("after", ["p50", "p90", "p99", "p99.9"])
def test_a_quantile_is_read(after: str) -> None:
    assert _read(f"{{after: {after}, share: 0.2}}") == HedgeRules(after=after, share=0.2)


@pytest.mark.parametrize(("written", "after"), [("2", 2), ("1.5", 1.5), ("0.05", 0.05), ("1e1", 10.0)])
def test_seconds_are_read(written: str, after: float) -> None:
    assert _read(f"{{after: {written}}}") == HedgeRules(after=after)


def test_the_environment_goes_over_the_file() -> None:
    env = {"HEADGATE__MODELS__M__HEDGE__AFTER": "p99", "HEADGATE__MODELS__M__HEDGE__SHARE": "0.1"}
    assert _read("{after: p50}", env) == HedgeRules(after="p99", share=0.1)


@pytest.mark.parametrize(("value", "after"), [("p90", "p90"), ("2.5", 2.5)])
def test_a_variable_is_filled_in_as_what_it_says(value: str, after: str | float) -> None:
    assert _read('{after: "${AFTER}"}', {"AFTER": value}) == HedgeRules(after=after)
    env = {"HEADGATE__MODELS__M__HEDGE__AFTER": value}
    assert _read("{}", env) == HedgeRules(after=after)


@pytest.mark.parametrize("after", ["p49", "p100", "95", "P95", "slow", "2s", "p99.99"])
def test_a_text_that_is_no_quantile_is_refused_with_what_is_due(after: str) -> None:
    assert _mistakes(f"{{after: '{after}'}}") == [
        f"{WHERE}.after: must be a quantile from p50 to p99.9, or seconds, not '{after}'"
    ]


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ("0", "must be more than 0, not 0"),
        ("-1", "must be more than 0, not -1"),
        (".inf", "must be a finite number, not inf"),
    ],
)
def test_a_time_that_is_none_is_refused(after: str, message: str) -> None:
    assert _mistakes(f"{{after: {after}}}") == [f"{WHERE}.after: {message}"]


@pytest.mark.parametrize("after", ["true", "null", "[p95]", "{p: 95}"])
def test_what_is_neither_text_nor_number_is_refused_without_wrong_advice(after: str) -> None:
    [mistake] = _mistakes(f"{{after: {after}}}")
    assert mistake.startswith(f"{WHERE}.after: must be ")
    assert "quote it" not in mistake, "in quotes it would be as wrong"


@pytest.mark.parametrize(
    ("share", "message"),
    [
        ("0", "must be more than 0, not 0"),
        ("1.5", "must be at most 1, not 1.5"),
        ("5%", "must be a number, not '5%'"),
        ("null", "must be a number, not null"),
        ("true", "must be a number, not true"),
    ],
)
def test_a_share_that_is_none_is_refused(share: str, message: str) -> None:
    assert _mistakes(f"{{share: {share}}}") == [f"{WHERE}.share: {message}"]


@pytest.mark.parametrize(
    ("value", "kind"), [("true", "a single value"), ("p95", "a single value"), ("[]", "a list")]
)
def test_what_is_no_mapping_is_refused(value: str, kind: str) -> None:
    assert _mistakes(value) == [f"{WHERE}: must be a mapping, not {kind}"]


def test_a_key_that_does_not_exist_is_refused_with_a_hint() -> None:
    assert _mistakes("{shar: 0.1}") == [
        f"{WHERE}.shar: is no setting; did you mean 'share'? known: after, share"
    ]
    assert _mistakes("{quantile: p95}") == [f"{WHERE}.quantile: is no setting; known: after, share"]


def test_all_mistakes_are_told_at_once() -> None:
    assert len(_mistakes("{after: p10, share: 2, often: true}")) == 3


def test_an_upstream_has_no_hedge_of_its_own() -> None:
    lines = mistakes_in("models: {m: {upstreams: [{provider: cloud, hedge: {after: p95}}]}}")
    assert [line.partition(":")[0] for line in lines] == ["models.m.upstreams[0].hedge"]
