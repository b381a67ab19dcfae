"""Variables are filled in, and neither they nor keys and passwords ever show."""

import traceback
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from settings.settings_stage import PROVIDERS, error_of, in_upstream, loaded, mistakes_in

from headgate.core.errors import UnknownModel
from headgate.core.problems import InvalidSettings
from headgate.settings import load
from headgate.settings.summary import summary

SECRET = "sk-live-0123456789abcdef"


def options(keys: str, env: dict[str, str]) -> Any:
    settings = loaded(f"models: {{m: {{upstreams: [{{provider: cloud, {keys}}}]}}}}", env)
    return settings.models["m"].upstreams[0].options


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("${A}", "one"),
        ("x${A}y${B}z", "xoneytwoz"),
        ("$${A}", "${A}"),
        ("$${A}${A}", "${A}one"),
        ("$A $", "$A $"),
        ("${EMPTY}", ""),
        ("${LOOP}", "${A}"),
        ("${NUMBER}", "007"),
    ],
)
def test_variables_are_filled_in_wherever_text_stands(text: str, filled: str) -> None:
    env = {"A": "one", "B": "two", "EMPTY": "", "LOOP": "${A}", "NUMBER": "007"}

    assert options(f'base_url: "{text}", headers: {{x: ["{text}"]}}', env) == {
        "base_url": filled,
        "headers": {"x": [filled]},
    }
    assert type(options(f'base_url: "{text}"', env)["base_url"]) is str


def test_a_variable_is_read_as_a_number_where_a_number_is_due() -> None:
    env = {"SLOTS": "3", "RATE": "null", "FLAG": "off\n", "ORDER": "lifo", "PRESET": "web", "HOME": "/root"}
    text = """\
        data_dir: ${HOME}/headgate
        models:
          m:
            upstreams:
              - provider: cloud
                model: ${SLOTS}
                slots: ${SLOTS}
                requests_per_minute: ${RATE}
                breaker: ${FLAG}
                interactive_order: ${ORDER}
            retry: ${PRESET}
        """
    settings = loaded(text, env)

    upstream = settings.models["m"].upstreams[0]
    assert (upstream.model, upstream.gate.slots, upstream.gate.breaker) == ("3", 3, False)
    assert settings.models["m"].retry.jitter == "additive"
    assert str(settings.data_dir) == "/root/headgate"


def test_a_variable_that_is_not_set_is_told_by_name_and_nothing_else_is_said_of_it() -> None:
    assert in_upstream("api_key: '${A}-${B}', slots: '${C}', headers: {x: '${D'}, base_url: '${E F}'") == [
        "api_key: the environment variable A is not set",
        "api_key: the environment variable B is not set",
        "slots: the environment variable C is not set",
        "headers.x: holds a ${ without a variable's name; write $${ for the characters ${",
        "base_url: holds a ${ without a variable's name; write $${ for the characters ${",
    ]


def test_keys_are_not_filled_in() -> None:
    assert mistakes_in("${A}: 1", {"A": "data_dir"})[0].startswith("${A}: is no setting")


@pytest.mark.parametrize(
    "keys",
    [
        "api_key: 'bad-{secret}'",
        "api_key: ['{secret}']",
        "API_KEY: '{secret}'",
        "my_password: '{secret}'",
        "client_secret: {{inner: ['{secret}']}}",
        "token_limit: '{secret}'",
        "headers: {{Authorization: 'bad {secret}'}}",
        "headers: {{x-api-key: 'bad{secret}'}}",
        "color: [{{token: '{secret}'}}]",
    ],
)
def test_what_sounds_like_a_secret_never_prints(keys: str) -> None:
    error = error_of(f"models: {{m: {{upstreams: [{{provider: cloud, {keys.format(secret=SECRET)}}}]}}}}")

    assert_hidden(error)


@pytest.mark.parametrize(
    "text",
    [
        "models: {{m: {{upstreams: [{{provider: '{0}'}}]}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud, color: '{0}'}}]}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud, base_url: 'bad:{0}@host'}}]}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud, slots: '{0}'}}]}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud, preempt: '{0}'}}]}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud, interactive_order: '{0}'}}]}}}}",
        "models: {{m: {{upstreams: ['{0}']}}}}",
        "models: {{m: {{upstreams: '{0}'}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud}}], retry: '{0}'}}}}",
        "models: {{m: {{upstreams: [{{provider: cloud}}], timeouts: '{0}'}}}}",
        "models: {{m: '{0}'}}",
        "models: '{0}'",
        "data_dir: ['{0}']",
        "unknown: '{0}'",
    ],
)
def test_what_a_variable_has_filled_in_never_prints(text: str) -> None:
    assert_hidden(error_of(text.format("x${V}y"), {"V": SECRET}))


def assert_hidden(error: InvalidSettings) -> None:
    told = "".join(traceback.format_exception(error)) + repr(error) + repr(error.problems)
    assert SECRET not in told
    assert SECRET[:12] not in told


def test_a_key_given_by_override_never_prints() -> None:
    env = {"HEADGATE__MODELS__M__UPSTREAMS__0__API_KEY": f"bad{SECRET}"}

    (mistake,) = mistakes_in("models: {m: {upstreams: [{provider: cloud}]}}", env)

    assert mistake == (
        "models.m.upstreams[0].api_key: is wrong: *** in {'api_key': ***} "
        "(set by HEADGATE__MODELS__M__UPSTREAMS__0__API_KEY)"
    )


def test_small_numbers_from_variables_are_hidden_without_spoiling_other_messages() -> None:
    env = {"S": "2", "D": "-1"}

    assert in_upstream("slots: '${S}', reserved_slots: 3", env) == [
        "reserved_slots: must be at most slots (***), not 3"
    ]
    assert in_upstream("depth: '${D}', token_limit: -12345, hold_wait_s: -2", env) == [
        "depth: must be at least 0, not ***",
        "token_limit: must be at least 0, not ***",
        "hold_wait_s: must be at least 0, not -2",
    ]


def test_a_syntax_error_does_not_quote_the_lines_around_it() -> None:
    assert_hidden(error_of(f"api_key: '{SECRET}\nmodels: ]"))
    assert_hidden(error_of(f"models:\n  api_key: {SECRET}: {SECRET}"))


def test_a_part_of_a_filled_model_name_is_hidden_too() -> None:
    """A provider may cut its own prefix off before it complains."""

    def check(model: str | None, options: object) -> None:
        if model:
            raise UnknownModel(
                f"no model is called {model.removeprefix('cloud/')!r}; known: 'x'", param="model"
            )

    mapping = {"models": {"m": {"upstreams": [{"provider": "cloud", "model": "${M}"}]}}}
    with pytest.raises(InvalidSettings) as caught:
        load(mapping, env={"M": "cloud/mine"}, providers={**PROVIDERS, "cloud": check})

    assert [str(problem) for problem in caught.value.problems] == [
        "models.m.upstreams[0].model: no model is called ***; known: 'x'"
    ]


def test_an_unknown_model_leaves_the_options_checked() -> None:
    def check(model: str | None, options: Any) -> None:
        if model:
            raise UnknownModel("no such model", param="model")
        PROVIDERS["cloud"](None, options)

    mapping = {"models": {"m": {"upstreams": [{"provider": "cloud", "model": "x", "color": 1}]}}}
    with pytest.raises(InvalidSettings) as caught:
        load(mapping, env={}, providers={**PROVIDERS, "cloud": check})

    assert [problem.message for problem in caught.value.problems] == [
        "no such model",
        "is no option of cloud: 1",
    ]


def test_neither_records_nor_the_summary_print_options() -> None:
    settings = loaded(f"models: {{m: {{upstreams: [{{provider: cloud, api_key: {SECRET}}}]}}}}")

    assert SECRET in str(settings.models["m"].upstreams[0].options)
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings)
    assert SECRET not in summary(settings)


@given(secret=st.text(st.characters(codec="utf-8"), min_size=6, max_size=40))
def test_no_text_whatever_gets_through(secret: str) -> None:
    """Quotes, line ends, accents: a message may spell a value in more than one way."""
    # What also stands in the report of any other secret is no sign of a leak.
    assume(secret.strip() not in report_with("Q" * 20) and set(secret) - set("*' "))

    assert secret.strip() not in report_with(secret)


def report_with(secret: str) -> str:
    """What is said about wrong values that hold this secret, by variable or under a telling name."""
    upstreams = [
        {"provider": "cloud", "color": "${V}", "base_url": "bad ${V}", "slots": "${V}"},
        {"provider": "cloud", "api_key": [secret], "my_secret": secret},
        {"provider": "cloud", "api_key": "${V}", "headers": {"x-token": f"bad {secret}"}},
    ]
    with pytest.raises(InvalidSettings) as caught:
        load({"models": {"m": {"upstreams": upstreams}}}, env={"V": secret}, providers=PROVIDERS)
    return str(caught.value)
