"""Settings that come from code, as a mapping or as records, are held to the same rules as a file."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from settings.settings_stage import PROVIDERS

from headgate.calls.routes import Gather
from headgate.core.idempotency import IdempotencyRules
from headgate.core.job_rules import JobRules
from headgate.core.problems import InvalidSettings
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
        (lambda: Settings(database="mysql://me:hunter2@db"), "database: must be sqlite or a URL"),
        (lambda: Settings(database=wrong(None)), "database: must be text, not of type NoneType"),
        (lambda: JobRules(workers=0), "workers: must be at least 1, not 0"),
        (lambda: JobRules(retry=wrong("web")), "retry: must be a RetryPolicy, not 'web'"),
        (lambda: JobRules(tasks=wrong("news.tasks")), "tasks: must be a tuple of import paths, not 'news"),
        (
            lambda: JobRules(tasks=("news.tasks", "news/tasks")),
            "tasks[1]: must be the import path of a module",
        ),
        (lambda: JobRules(tasks=(wrong(["x"]),)), "tasks[0]: must be the import path of a module"),
        (
            lambda: IdempotencyRules(mismatch_status=wrong([409])),
            "mismatch_status: must be 409 or 422, not [409]",
        ),
        (
            lambda: IdempotencyRules(mismatch_status=wrong(409.0)),
            "mismatch_status: must be 409 or 422, not 409.0",
        ),
        (lambda: IdempotencyRules(unknown=wrong([])), "unknown: must be one of rerun, refuse, not []"),
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


def wrong(value: Any) -> Any:
    """What a type checker would not let through."""
    return value


def one_model() -> ModelSettings:
    return ModelSettings(upstreams=(UpstreamSettings(provider="cloud"),))
