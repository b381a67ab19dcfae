"""Every mistake is found, at its place, in words that say what would be right."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
from settings.settings_stage import error_of, in_upstream, loaded, mistakes_in

from headgate.calls.routes import Gather
from headgate.core.gate_rules import GateRules
from headgate.core.hedging import HedgeRules
from headgate.core.pacing import PacingRules
from headgate.core.problems import InvalidSettings
from headgate.core.retry import RetryPolicy
from headgate.core.timeouts import Timeouts
from headgate.settings import ModelSettings, UpstreamSettings

EVERYTHING_WRONG = """
models:
  summary:
    upstreams:
      - provider: clod
        slots: -2
        reserved_slots: 4
        depth: "5"
        promote_after_s: .nan
        preempt: 1
        interactive_order: lfo
        requests_per_minute: 0
        color: blue
      - slots: 2
        reserved_slots: 3
        interval_s: .inf
      - {provider: cloud, model: 7, color: blue, slot: 3}
      - cloud
    retry: {max_attempts: 0, max_retries: -1, jitter: fulll, factor: yes, wait_s: 2}
    timeouts: [1, 2]
    balance: least-busy
    gather: {size: 1.5, wait_ms: 60001}
    strem_rescue: true
  two*stars*: {upstreams: []}
  1: {upstreams: {}}
  bare:
  gone: {upstreams: [{provider: cloud, api_key: "${NOT_SET}"}], retry: wep}
data_dir: ~/data
logs_dir: ""
colour: blue
"""

REPORT = """\
35 mistakes in the settings:
  models.summary.upstreams[0].provider: no provider is called 'clod'; did you mean 'cloud'? known: cloud, simulated
  models.summary.upstreams[0].slots: must be at least 1, not -2
  models.summary.upstreams[0].depth: must be a whole number, not '5'
  models.summary.upstreams[0].promote_after_s: must be a finite number, not nan
  models.summary.upstreams[0].preempt: must be true or false, not 1
  models.summary.upstreams[0].interactive_order: must be one of fifo, lifo, not 'lfo'; did you mean 'lifo'?
  models.summary.upstreams[0].requests_per_minute: must be at least 1, not 0
  models.summary.upstreams[1].provider: is missing: every upstream names its provider
  models.summary.upstreams[1].reserved_slots: must be at most slots (2), not 3
  models.summary.upstreams[1].interval_s: must be a finite number, not inf
  models.summary.upstreams[2].model: must be text, not 7: quote it
  models.summary.upstreams[2].color: is no option of cloud: 'blue'
  models.summary.upstreams[2].slot: is no option of cloud: 3; did you mean 'slots'?
  models.summary.upstreams[3]: must be a mapping, not a single value
  models.summary.retry.max_attempts: must be at least 1, not 0
  models.summary.retry.max_retries: says the same as max_attempts: give only one of them
  models.summary.retry.max_retries: must be at least 0, not -1
  models.summary.retry.jitter: must be one of none, full, equal, additive, symmetric, not 'fulll'; did you mean 'full'?
  models.summary.retry.factor: must be a number, not true
  models.summary.retry.wait_s: is no setting; did you mean 'first_wait_s'? known: count_throttles, factor, first_wait_s, jitter, jitter_s, jitter_share, longest_wait_s, max_attempts, max_retries
  models.summary.timeouts: must be a mapping, not a list
  models.summary.balance: must be one of ordered, least_busy, not 'least-busy'; did you mean 'least_busy'?
  models.summary.gather.size: must be a whole number, not 1.5
  models.summary.gather.wait_ms: must be at most 60000, not 60001
  models.summary.strem_rescue: is no setting; did you mean 'stream_rescue'? known: balance, gather, hedge, patience_s, retry, stream_rescue, timeouts, upstreams, wait
  models.two*stars*: a star may only end a family's name, after a slash: 'name/*'
  models.two*stars*.upstreams: must be a list with at least one upstream
  models.1: model names must be text: quote it
  models.1.upstreams: must be a list with at least one upstream
  models.bare.upstreams: must be a list with at least one upstream
  models.gone.upstreams[0].api_key: the environment variable NOT_SET is not set
  models.gone.retry: must be a mapping or one of bedrock, web, agents, not 'wep'; did you mean 'web'?
  data_dir: must not start with ~: write the path out, or use ${HOME}
  logs_dir: must be the path of a directory
  colour: is no setting; known: alerts, apps, data_dir, database, idempotency, jobs, limits, listen, logs_dir, models, secret_key, tracing, webhooks"""


def test_all_mistakes_of_a_file_are_reported_at_once_in_its_order() -> None:
    error = error_of(EVERYTHING_WRONG)

    assert str(error) == REPORT
    assert len(error.problems) == 35
    assert error.__cause__ is None
    assert error.__context__ is None


def keys_of_the_records() -> Iterator[tuple[str, str, Any]]:
    """Every key that takes one value: how it is written in a file, its name, its type."""
    upstream, model = "upstreams: [{{provider: cloud, {0}: {1}}}]", "upstreams: [{{provider: cloud}}]"
    places: dict[type, str] = {
        UpstreamSettings: upstream,
        GateRules: upstream,
        PacingRules: upstream,
        ModelSettings: f"{model}, {{0}}: {{1}}",
        RetryPolicy: f"{model}, retry: {{{{{{0}}: {{1}}}}}}",
        Timeouts: f"{model}, timeouts: {{{{{{0}}: {{1}}}}}}",
        Gather: f"{model}, gather: {{{{{{0}}: {{1}}}}}}",
        HedgeRules: f"{model}, hedge: {{{{{{0}}: {{1}}}}}}",
    }
    skipped = {"provider", "gate", "pacing", "options", "upstreams", "retry", "timeouts", "gather", "hedge"}
    for record, place in places.items():
        for field in dataclasses.fields(record):
            if field.name not in skipped:
                yield place, field.name, field.type


KEYS = list(keys_of_the_records())


@pytest.mark.parametrize("value", ["[1]", "{a: 1}", "''", "'words'", ".nan", "-.inf", "-1", "2026-01-31"])
@pytest.mark.parametrize(("place", "key", "kind"), KEYS, ids=[key for _, key, _ in KEYS])
def test_no_key_of_any_record_takes_rubbish(place: str, key: str, kind: Any, value: str) -> None:
    """A record whose review forgot a field would let rubbish through to the running gateway."""
    if key == "model" and ("'words'" in value or "2026" in value):
        return
    mistakes = mistakes_in(f"models: {{m: {{{place.format(key, value)}}}}}")

    assert len(mistakes) == 1
    assert f".{key}: must " in mistakes[0]


@pytest.mark.parametrize(("place", "key", "kind"), KEYS, ids=[key for _, key, _ in KEYS])
def test_only_keys_that_may_be_null_take_null(place: str, key: str, kind: Any) -> None:
    text = f"models: {{m: {{{place.format(key, 'null')}}}}}"
    if key in {"model", "requests_per_minute", "tokens_per_minute", "retry_budget", "first_token_s"}:
        assert loaded(text) == loaded("models: {m: {upstreams: [{provider: cloud}]}}")
    else:
        (mistake,) = mistakes_in(text)
        assert mistake.endswith(", not null")


@pytest.mark.parametrize("key", ["slots", "depth", "requests_per_minute"])
@pytest.mark.parametrize("value", ["true", "2.0", "'2'", "1e1", "9" * 30])
def test_a_whole_number_is_nothing_else(key: str, value: str) -> None:
    (mistake,) = in_upstream(f"{key}: {value}")

    assert mistake.startswith(f"{key}: must be a whole number, not ")


def test_a_wrong_slots_causes_no_false_alarm_about_reserved_slots() -> None:
    for wrong in ("many", "null", "-1", "'9'", "'${NOT_SET}'"):
        (mistake,) = in_upstream(f"slots: {wrong}, reserved_slots: 10")
        assert mistake.startswith("slots: ")


def test_a_mistake_of_a_model_s_own_number_hides_no_other() -> None:
    text = "models: {m: {upstreams: [{provider: cloud, slots: 0}], patience_s: -1}}\ncolour: blue"
    paths = [mistake.partition(": ")[0] for mistake in mistakes_in(text)]

    assert sorted(paths) == ["colour", "models.m.patience_s", "models.m.upstreams[0].slots"]


@pytest.mark.parametrize("budget", ["100.5", "-0.1", "many", "'0.5'", ".nan"])
def test_a_retry_budget_is_a_share_of_the_calls(budget: str) -> None:
    (mistake,) = in_upstream(f"retry_budget: {budget}")

    assert mistake.startswith("retry_budget: must be ")


def test_a_long_text_is_quoted_in_short() -> None:
    (mistake,) = in_upstream(f"slots: {'x' * 10_000}")

    assert len(mistake) < 120


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("''", "a model's name must have 1 to 200 characters, not 0"),
        ("x" * 201, "a model's name must have 1 to 200 characters, not 201"),
        ('"a\\nb"', "a model's name must be printable"),
        ('"a\\e[31mb"', "a model's name must be printable"),
        ("'*'", "a star may only end a family's name, after a slash: 'name/*'"),
        ("/*", "a star may only end a family's name, after a slash: 'name/*'"),
        ("a*", "a star may only end a family's name, after a slash: 'name/*'"),
        ("a/*/b", "a star may only end a family's name, after a slash: 'name/*'"),
        ("a/*/*", "a star may only end a family's name, after a slash: 'name/*'"),
    ],
)
def test_a_model_name_has_its_rules_and_never_garbles_the_report(name: str, reason: str) -> None:
    (mistake,) = mistakes_in(f"models: {{{name}: {{upstreams: [{{provider: cloud}}]}}}}")

    assert mistake.endswith(f": {reason}")
    assert mistake.isprintable()
    assert len(mistake) < 300


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ("model: ''", "model: must not be empty"),
        ('model: "a\\tb"', "model: must be printable"),
        ("model: nobody", "model: is unknown: nobody"),
        ("api_key: 5", "api_key: must be text, not ***"),
        ("base_url: 5", "base_url: must be text, not 5"),
        ("adaptve: true", "adaptve: is no option of cloud: True; did you mean 'adaptive'?"),
    ],
)
def test_an_upstreams_names_and_options_are_checked(keys: str, mistake: str) -> None:
    assert in_upstream(keys) == [mistake]


def test_max_retries_has_the_range_of_max_attempts() -> None:
    model = "models: {{m: {{upstreams: [{{provider: cloud}}], retry: {{max_retries: {0}}}}}}}"

    assert mistakes_in(model.format(100)) == ["models.m.retry.max_retries: must be at most 99, not 100"]
    assert mistakes_in(model.format("two")) == [
        "models.m.retry.max_retries: must be a whole number, not 'two'"
    ]
    with pytest.raises(InvalidSettings):
        RetryPolicy(max_attempts=101)


@pytest.mark.parametrize("value", ["5", "[web]", "true"])
def test_retry_is_a_mapping_or_a_presets_name(value: str) -> None:
    (mistake,) = mistakes_in(f"models: {{m: {{upstreams: [{{provider: cloud}}], retry: {value}}}}}")

    assert mistake.startswith("models.m.retry: must be a mapping, not a ")


@pytest.mark.parametrize("path", ["''", "' '", "5", "[a]", '"a\\0b"', "~/x", "{a: b}"])
def test_a_directory_is_a_path(path: str) -> None:
    (mistake,) = mistakes_in(f"logs_dir: {path}")

    assert mistake.startswith("logs_dir: must ")
