"""The stage for the settings' tests: two providers, a file from a text, and a look at the report."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import dedent
from typing import Any

import pytest

from headgate.core.problems import InvalidSettings, Problem, Review
from headgate.settings import OptionsCheck, Settings, load


def check_cloud(model: str | None, options: Mapping[str, Any]) -> None:
    """A provider with two options. Like careless ones, it quotes whatever it was given."""
    review = Review()
    for name, value in options.items():
        if name not in {"api_key", "base_url", "headers", "token_limit"}:
            review.add(name, f"is no option of cloud: {value!r}")
        elif name == "token_limit":
            review.number(name, value, whole=True)
        elif name == "headers":
            _check_headers(review, value)
        elif not isinstance(value, str):
            review.add(name, f"must be text, not {value!r}")
        elif "bad" in value:
            review.add(name, f"is wrong: {value!r} in {dict(options)!r}")
    if model == "nobody":
        review.add("model", f"is unknown: {model}")
    review.refuse()


def _check_headers(review: Review, headers: Any) -> None:
    for name, value in headers.items():
        if "bad" in str(value):
            review.add(f"headers.{name}", f"is wrong: {str(value)[:20]}…")


def check_simulated(model: str | None, options: Mapping[str, Any]) -> None:
    if options:
        raise InvalidSettings(Problem(name, "is no option here") for name in options)


PROVIDERS: Mapping[str, OptionsCheck] = {"cloud": check_cloud, "simulated": check_simulated}


def loaded(text: str, env: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file with this text."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "headgate.yaml"
        path.write_text(dedent(text), encoding="utf-8", newline="")
        return load(path, env=env or {}, providers=PROVIDERS)


def error_of(text: str, env: Mapping[str, str] | None = None) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        loaded(text, env)
    return caught.value


def mistakes_in(text: str, env: Mapping[str, str] | None = None) -> list[str]:
    """One line per mistake; the file's own path, which is a new one each time, is left out."""
    return [
        problem.message if problem.path.endswith("headgate.yaml") else str(problem)
        for problem in error_of(text, env).problems
    ]


def in_upstream(keys: str, env: Mapping[str, str] | None = None) -> list[str]:
    """The mistakes of one upstream of the provider cloud, without their common path."""
    lines = mistakes_in(f"models: {{m: {{upstreams: [{{provider: cloud, {keys}}}]}}}}", env)
    return [line.removeprefix("models.m.upstreams[0].") for line in lines]
