"""Overrides by variable: which key a name means, what its value means, and who is blamed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from settings.settings_stage import PROVIDERS, loaded, mistakes_in

from headgate.core.retry import RetryPolicy
from headgate.settings import Settings, load
from headgate.settings.environment import value_of

FILE = """
models:
  summary:
    upstreams: [{provider: cloud, slots: 1}, {provider: simulated}]
    retry: {max_attempts: 2, factor: 3}
  my-model:
    upstreams: [{provider: cloud}]
  fast/*:
    upstreams: [{provider: cloud}]
"""


def test_an_override_goes_over_the_file_and_leaves_the_rest() -> None:
    settings = loaded(
        FILE,
        {
            "HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS": "5",
            "HEADGATE__MODELS__SUMMARY__UPSTREAMS__0__SLOTS": "2",
            "HEADGATE__MODELS__SUMMARY__UPSTREAMS__1__ADAPTIVE": "false",
            "HEADGATE__MODELS__SUMMARY__TIMEOUTS__TOTAL_S": "1.5",
            "HEADGATE__MODELS__SUMMARY__BALANCE": "least_busy",
            "HEADGATE__DATA_DIR": "elsewhere",
        },
    )

    summary = settings.models["summary"]
    assert summary.retry == replace(RetryPolicy.sdk(), max_attempts=5, factor=3)
    assert summary.upstreams[0].gate.slots == 2
    assert not summary.upstreams[1].gate.adaptive
    assert summary.timeouts.total_s == 1.5
    assert summary.balance == "least_busy"
    assert settings.data_dir == Path("elsewhere")


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("MY_MODEL", "my-model"),
        ("my_model", "my-model"),
        ("My_Model", "my-model"),
        ("FAST__", "fast/*"),
        ("SIMULATED", "simulated"),
        ("SIMULATED__", "simulated/*"),
    ],
)
def test_a_name_finds_its_model_whatever_its_case_and_signs(name: str, model: str) -> None:
    settings = loaded(FILE, {f"HEADGATE__MODELS__{name}__TIMEOUTS__TOTAL_S": "7"})

    assert {name for name, model in settings.models.items() if model.timeouts.total_s == 7} == {model}


def test_a_whole_model_may_come_from_the_environment() -> None:
    settings = load(
        {}, env={"HEADGATE__MODELS__NEW__UPSTREAMS": "[{provider: cloud, slots: 3}]"}, providers=PROVIDERS
    )

    assert settings.models["new"].upstreams[0].gate.slots == 3
    assert set(settings.models) == {"new", "simulated", "simulated/*"}


def test_the_simulated_models_survive_an_override_of_all_models() -> None:
    settings = loaded(FILE, {"HEADGATE__MODELS": "{only: {upstreams: [{provider: cloud}]}}"})

    assert set(settings.models) == {"only", "simulated", "simulated/*"}


def test_variables_with_a_single_underscore_are_no_overrides() -> None:
    others = {"HEADGATE_URL": "http://x", "HEADGATE_MODELS": "1", "HEADGATE": "1", "headgate__data_dir": "x"}

    assert load({}, env=others, providers=PROVIDERS) == Settings()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        (" 5 ", 5),
        ("0.5", 0.5),
        ("true", True),
        ("off", False),
        ("null", None),
        ("", None),
        ("[1, two, {a: b}]", [1, "two", {"a": "b"}]),
        ("{a: 1}", {"a": 1}),
        ('"5"', "5"),
        ("'null'", "null"),
        ("plain words", "plain words"),
        ("  kept  ", "  kept  "),
        ("a: b", "a: b"),
        ("- a", "- a"),
        ("pass #1", "pass #1"),
        ("*x", "*x"),
        ("&x y", "&x y"),
        ("!tag", "!tag"),
        ("{broken", "{broken"),
        ("[a]b", "[a]b"),
        ('"quoted" and more', '"quoted" and more'),
        ("{a: 1, a: 2}", "{a: 1, a: 2}"),
        ("[*x]", "[*x]"),
        ("${HOME}", "${HOME}"),
        ("\udcff", "\udcff"),
        ("[\udcff]", "[\udcff]"),
        ("[" * 50_000, "[" * 50_000),
    ],
)
def test_a_value_is_a_yaml_value_or_else_itself_letter_by_letter(text: str, value: Any) -> None:
    """A password with a `#` must not lose its end, nor one with a colon become a mapping."""
    assert value_of(text) == value


def test_an_override_is_not_filled_in_again() -> None:
    """What the environment says is final: a password may hold `${` without being one more variable."""
    env = {"HEADGATE__MODELS__SUMMARY__UPSTREAMS__0__API_KEY": "a${b}$${c"}

    assert loaded(FILE, env).models["summary"].upstreams[0].options == {"api_key": "a${b}$${c"}


def test_an_override_mends_a_variable_that_is_not_set() -> None:
    text = "models: {m: {upstreams: [{provider: cloud, api_key: '${NOT_SET}'}]}}"

    settings = loaded(text, {"HEADGATE__MODELS__M__UPSTREAMS__0__API_KEY": "here"})

    assert settings.models["m"].upstreams[0].options == {"api_key": "here"}


def test_a_mistake_names_its_variable() -> None:
    env = {
        "HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS": "0",
        "HEADGATE__MODELS__SUMMARY__UPSTREAMS__0__COLOR": "blue",
        "HEADGATE__MODELS__SUMMARY__SLOTS": "2",
        "HEADGATE__MODELS__NEW__RETRY__MAX_ATTEMPTS": "2",
        "HEADGATE__DATADIR": "x",
    }
    blamed = [line.rsplit(" (set by ") for line in mistakes_in(FILE, env)]

    known = "known: balance, gather, hedge, patience_s, retry, stream_rescue, timeouts, upstreams, wait"
    assert [line for line, _ in blamed] == [
        "models.summary.upstreams[0].color: is no option of cloud: 'blue'",
        "models.summary.retry.max_attempts: must be at least 1, not 0",
        f"models.summary.slots: is no setting; {known}",
        "models.new.upstreams: must be a list with at least one upstream",
        "datadir: is no setting; did you mean 'data_dir'? known: alerts, apps, data_dir, database, idempotency, jobs, limits, listen, logs_dir, models, secret_key, tracing, webhooks",
    ]
    assert [variable.removesuffix(")") for _, variable in blamed] == [
        "HEADGATE__MODELS__SUMMARY__UPSTREAMS__0__COLOR",
        "HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS",
        "HEADGATE__MODELS__SUMMARY__SLOTS",
        "HEADGATE__MODELS__NEW__RETRY__MAX_ATTEMPTS",
        "HEADGATE__DATADIR",
    ]


@pytest.mark.parametrize(
    ("rest", "mistake"),
    [
        ("", "a part of the name is empty"),
        ("__DATA_DIR", "a part of the name is empty"),
        ("MODELS__", "a part of the name is empty"),
        ("MODELS____X", "a part of the name is empty"),
        (
            "MODELS__SUMMARY__UPSTREAMS__0__PROVIDER__X",
            "models.summary.upstreams[0].provider has no parts that could be set",
        ),
        (
            "MODELS__SUMMARY__UPSTREAMS__X__SLOTS",
            "models.summary.upstreams is a list: after it comes a number",
        ),
        (
            "MODELS__SUMMARY__UPSTREAMS__-1__SLOTS",
            "models.summary.upstreams is a list: after it comes a number",
        ),
        (
            "MODELS__SUMMARY__UPSTREAMS__²__SLOTS",
            "models.summary.upstreams is a list: after it comes a number",
        ),
        (
            "MODELS__SUMMARY__UPSTREAMS__2__SLOTS",
            "there is no models.summary.upstreams[2]: the list has 2, counted from 0",
        ),
        (
            "MODELS__SUMMARY__UPSTREAMS__2",
            "there is no models.summary.upstreams[2]: the list has 2, counted from 0",
        ),
        (
            f"MODELS__SUMMARY__UPSTREAMS__{'9' * 9999}",
            f"there is no models.summary.upstreams[{'9' * 20}]: the list has 2, counted from 0",
        ),
    ],
)
def test_a_name_that_leads_nowhere_is_a_mistake(rest: str, mistake: str) -> None:
    variable = f"HEADGATE__{rest}"

    assert mistakes_in(FILE, {variable: "1"})[0].endswith(f": {mistake}")


def test_a_name_that_could_mean_two_models_is_a_mistake() -> None:
    text = "models: {a-b: {upstreams: [{provider: cloud}]}, a.b: {upstreams: [{provider: cloud}]}}"

    assert mistakes_in(text, {"HEADGATE__MODELS__A_B__BALANCE": "ordered"}) == [
        "HEADGATE__MODELS__A_B__BALANCE: could mean any of models.a-b, models.a.b"
    ]


def test_an_override_beneath_another_one_runs_through_its_value() -> None:
    env = {
        "HEADGATE__MODELS__SUMMARY__RETRY": "web",
        "HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS": "5",
    }
    assert mistakes_in(FILE, env) == [
        "HEADGATE__MODELS__SUMMARY__RETRY__MAX_ATTEMPTS: models.summary.retry has no parts that could be set"
    ]


@pytest.mark.parametrize("section", ["", "jobs:", "jobs: {}", "jobs: {retry: }", "jobs: {retry: null}"])
def test_an_override_leads_through_an_empty_section(section: str) -> None:
    """An empty section means its defaults: a key set in it must not depend on whether it stands in the file."""
    settings = loaded(section, {"HEADGATE__JOBS__RETRY__FACTOR": "3", "HEADGATE__JOBS__WORKERS": "8"})

    assert settings.jobs.retry.factor == 3
    assert settings.jobs.workers == 8


def test_an_override_through_a_wrong_section_leaves_both_mistakes_visible() -> None:
    mistakes = mistakes_in("models: 5", {"HEADGATE__MODELS__A__BALANCE": "ordered"})

    assert mistakes == [
        "models: must be a mapping, not a single value",
        "HEADGATE__MODELS__A__BALANCE: models has no parts that could be set",
    ]
