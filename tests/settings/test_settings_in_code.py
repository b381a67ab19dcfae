"""Settings that come from code, as a mapping or as records, are held to the same rules as a file."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings.settings_stage import PROVIDERS

from headgate.core.problems import InvalidSettings
from headgate.dispatch.routes import Gather
from headgate.settings import ModelSettings, Settings, UpstreamSettings, load


def circle() -> dict[str, Any]:
    inner: dict[str, Any] = {}
    inner["a"] = inner["b"] = inner
    return {"models": inner}


def laughs() -> dict[str, Any]:
    value: list[Any] = ["ha"] * 10
    for _ in range(20):
        value = [value] * 10
    return {"models": value}


@pytest.mark.parametrize(
    ("mapping", "mistake"),
    [
        (
            lambda: {"models": {1: {"upstreams": [{"provider": "cloud"}]}}},
            "models.1: model names must be text: quote it",
        ),
        (lambda: {"data_dir": {1, 2}}, "data_dir: must be plain data, not of type set"),
        (lambda: {"data_dir": b"x"}, "data_dir: must be plain data, not of type bytes"),
        (lambda: {"data_dir": 10**400}, "data_dir: is too large a number"),
        (lambda: {None: 1}, "None: keys must be text: quote it"),
        (circle, "the settings are nested more than 32 levels deep"),
    ],
)
def test_a_mapping_is_held_to_the_same_rules(mapping: Callable[[], Any], mistake: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        load(mapping(), env={}, providers=PROVIDERS)

    assert str(caught.value.problems[0]) == mistake


def test_a_mapping_that_shares_its_parts_is_not_copied_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty short lists inside one another stand for more values than any memory holds."""
    monkeypatch.setattr("headgate.settings.loading.MOST_VALUES", 1_000)

    with pytest.raises(InvalidSettings, match="the settings have more than 1,000 values"):
        load(laughs(), env={}, providers=PROVIDERS)


@pytest.mark.parametrize(
    ("build", "mistake"),
    [
        (lambda: Settings(models={"a*": one_model()}), "models.a*: a star may only end"),
        (lambda: Settings(models={"": one_model()}), "models.: a model's name must have"),
        (lambda: Settings(logs_dir=Path("~/x")), "logs_dir: must not start with ~"),
        (lambda: ModelSettings(upstreams=()), "upstreams: must have at least one entry"),
        (
            lambda: dataclasses.replace(one_model(), gather=Gather(size=0)),
            "gather.size: must be at least 1, not 0",
        ),
        (lambda: UpstreamSettings(provider=" "), "provider: must not be empty"),
        (lambda: UpstreamSettings(provider="cloud", model="a\nb"), "model: must be printable"),
    ],
)
def test_records_built_in_code_refuse_the_same(build: Callable[[], object], mistake: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        build()

    assert str(caught.value.problems[0]).startswith(mistake)


def one_model() -> ModelSettings:
    return ModelSettings(upstreams=(UpstreamSettings(provider="cloud"),))
