"""Without a file the environment says which models there are."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate import wiring
from headgate.core.errors import UnknownModel
from headgate.core.problems import InvalidSettings, Problem
from headgate.settings import Settings, load

SECRET = "sk-canary-71c1a2"


def _takes(*known: str) -> Any:
    def check(model: str | None, options: Mapping[str, Any]) -> None:
        wrong = [
            Problem(name, f"is no option: {value!r}") for name, value in options.items() if name not in known
        ]
        if "bad" in str(options.get("api_key")):
            wrong.append(Problem("api_key", f"is wrong: {options['api_key']!r}"))
        if "region" in known and "region" not in options:
            wrong.append(Problem("region", "is missing; set AWS_REGION"))
        if wrong:
            raise InvalidSettings(wrong)

    return check


PROVIDERS = {
    "openai": _takes("api_key"),
    "anthropic": _takes("api_key"),
    "ollama": _takes("base_url"),
    "bedrock": _takes("region"),
    "simulated": _takes(),
}
ALWAYS = ["simulated", "simulated/*"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _found(env: Mapping[str, str], providers: Mapping[str, Any] = PROVIDERS) -> Settings:
    return load(None, env=env, providers=providers)


@pytest.mark.parametrize(
    ("env", "family", "options"),
    [
        ({"OPENAI_API_KEY": SECRET}, "openai/*", {"api_key": SECRET}),
        ({"ANTHROPIC_API_KEY": SECRET}, "anthropic/*", {"api_key": SECRET}),
        ({"OLLAMA_HOST": "gpu-box:11434"}, "ollama/*", {"base_url": "gpu-box:11434"}),
        *(
            ({name: "x", "AWS_REGION": "eu-west-1"}, "bedrock/*", {"region": "eu-west-1"})
            for name in (
                "AWS_ACCESS_KEY_ID",
                "AWS_PROFILE",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
            )
        ),
        (
            {"AWS_PROFILE": "x", "AWS_REGION": "", "AWS_DEFAULT_REGION": "us-east-1"},
            "bedrock/*",
            {"region": "us-east-1"},
        ),
    ],
)
def test_credentials_bring_a_family(env: Mapping[str, str], family: str, options: Mapping[str, str]) -> None:
    settings = _found(env)

    assert list(settings.models) == [*ALWAYS, family]
    (upstream,) = settings.models[family].upstreams
    assert (upstream.provider, upstream.model) == (family.removesuffix("/*"), None)
    assert upstream.options == options


def test_all_of_them_stand_side_by_side() -> None:
    env = {
        "OPENAI_API_KEY": "a",
        "ANTHROPIC_API_KEY": "b",
        "OLLAMA_HOST": "c",
        "AWS_PROFILE": "d",
        "AWS_REGION": "e",
    }

    assert list(_found(env).models) == [*ALWAYS, "openai/*", "anthropic/*", "ollama/*", "bedrock/*"]


@pytest.mark.parametrize(
    "env", [{}, {"OPENAI_API_KEY": ""}, {"OLLAMA_HOST": "  "}, {"AWS_REGION": "eu-west-1"}]
)
def test_without_credentials_there_are_the_simulated_models(env: Mapping[str, str]) -> None:
    assert list(_found(env).models) == ALWAYS


def test_a_file_or_a_mapping_says_everything_itself() -> None:
    """Who writes a file decides what is offered; a key in the environment must not open more doors."""
    env = {"OPENAI_API_KEY": SECRET}
    assert list(load({}, env=env, providers=PROVIDERS).models) == ALWAYS
    Path("headgate.yaml").touch()
    assert list(_found(env).models) == ALWAYS


def test_a_provider_that_is_not_built_in_is_not_offered() -> None:
    assert list(_found({"OPENAI_API_KEY": SECRET}, {"simulated": PROVIDERS["simulated"]}).models) == ALWAYS


def test_a_key_is_taken_letter_by_letter_and_never_shown() -> None:
    key = "sk-${HOME}-$${"
    settings = _found({"OPENAI_API_KEY": key, "HOME": "/root"})
    assert settings.models["openai/*"].upstreams[0].options == {"api_key": key}
    assert key not in repr(settings)


def test_a_wrong_key_is_a_mistake_that_names_its_variable_and_hides_its_value() -> None:
    with pytest.raises(InvalidSettings) as caught:
        _found({"OPENAI_API_KEY": f"{SECRET}-bad"})

    (problem,) = caught.value.problems
    assert problem.path == "models.openai/*.upstreams[0].api_key"
    assert "(set by OPENAI_API_KEY)" in problem.message
    assert SECRET not in str(caught.value)


def test_aws_credentials_for_something_else_stop_no_start(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headgate"):
        assert list(_found({"AWS_PROFILE": "web"}).models) == ALWAYS
    assert "AWS_PROFILE is set, but there are no models bedrock/*: region: is missing" in caplog.text


def test_overrides_reach_what_was_found() -> None:
    env = {
        "OPENAI_API_KEY": SECRET,
        "HEADGATE__MODELS__OPENAI____TIMEOUTS__TOTAL_S": "60",
        "HEADGATE__MODELS__OPENAI____UPSTREAMS__0__SLOTS": "3",
    }
    model = _found(env).models["openai/*"]

    assert (model.timeouts.total_s, model.upstreams[0].gate.slots) == (60, 3)
    assert model.upstreams[0].options == {"api_key": SECRET}


def test_the_real_providers_take_what_the_environment_brings() -> None:
    env = {
        "OPENAI_API_KEY": SECRET,
        "ANTHROPIC_API_KEY": SECRET,
        "OLLAMA_HOST": "0.0.0.0:11434",
        "AWS_PROFILE": "web",
        "AWS_REGION": "eu-west-1",
    }
    settings = wiring.read_settings(None, env=env)

    assert list(settings.models) == [*ALWAYS, "openai/*", "anthropic/*", "ollama/*", "bedrock/*"]


@pytest.mark.parametrize(
    ("model", "variable"),
    [
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("anthropic/claude-sonnet-4-5", "ANTHROPIC_API_KEY"),
        ("ollama/gemma3:4b", "OLLAMA_HOST"),
        ("bedrock/us.amazon.nova-lite-v1:0", "AWS credentials"),
    ],
)
def test_a_model_that_a_file_took_away_is_missed_with_the_reason(
    model: str, variable: str, tmp_path: Path
) -> None:
    """It was there until a settings file was written; the key is still set."""
    (tmp_path / "headgate.yaml").write_text("models: {chat: {upstreams: [{provider: simulated}]}}")
    gateway = wiring.build(wiring.read_settings(None, env={"OPENAI_API_KEY": SECRET}))

    with pytest.raises(UnknownModel) as missed:
        gateway.routes.find(model)

    family = model.partition("/")[0] + "/*"
    assert str(missed.value) == (
        f"no model is called {model!r}; known: chat, simulated, simulated/*. Without a settings file {family} comes from"
        f" {variable}; a settings file replaces the models from the environment: add {family} under `models` in it"
    )


def test_other_names_are_missed_without_a_word_about_the_environment(tmp_path: Path) -> None:
    gateway = wiring.build(
        wiring.read_settings(
            {"models": {"openai/*": {"upstreams": [{"provider": "openai", "api_key": SECRET}]}}}, env={}
        )
    )

    assert gateway.routes.find("openai/gpt-5").model == "openai/gpt-5"
    with pytest.raises(UnknownModel) as missed:
        gateway.routes.find("gpt-5")
    assert "environment" not in str(missed.value)
