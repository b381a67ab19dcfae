"""The settings page says what the code does: every key, its default, its examples and its report."""

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate import wiring
from headgate.calls.routes import Gather
from headgate.core.alert_rules import AlertRules
from headgate.core.gate_rules import GateRules
from headgate.core.hedging import HedgeRules
from headgate.core.idempotency import IdempotencyRules
from headgate.core.job_rules import JobRules
from headgate.core.pacing import PacingRules
from headgate.core.problems import InvalidSettings
from headgate.core.retry import RetryPolicy
from headgate.core.timeouts import Timeouts
from headgate.core.webhook import WebhookRules
from headgate.providers.simulated import options_for
from headgate.settings import Limits, ModelSettings, Settings, UpstreamSettings, load
from headgate.settings.dotenv import read_dotenv
from headgate.settings.records import ALWAYS_THERE
from headgate.settings.summary import summary

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([^`]+)` \| (.+?) \| .+ \|$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RECORDS: Sequence[tuple[str, Any]] = (
    ("", Settings),
    ("M.", ModelSettings),
    ("M.retry.", RetryPolicy.sdk()),
    ("M.timeouts.", Timeouts),
    ("M.gather.", Gather),
    ("M.hedge.", HedgeRules),
    ("U.", UpstreamSettings),
    ("U.", GateRules),
    ("U.", PacingRules),
    ("jobs.", JobRules),
    # Not the class: jobs have defaults of their own.
    ("jobs.retry.", JobRules().retry),
    ("idempotency.", IdempotencyRules),
    ("webhooks.", WebhookRules),
    ("alerts.", AlertRules),
    ("limits.", Limits),
    *((f"apps.{name}.", kind.options) for name, kind in wiring.APPS.items()),
)
# Keys that are written otherwise in a file, or whose default is a section of its own.
PARTS = {"U.gate", "U.pacing"}
IN_WORDS = {
    "models": ", ".join(f"`{name}`" for name in ALWAYS_THERE),
    "M.retry": "see below",
    "M.timeouts": "see below",
    "M.retry.max_retries": "none",
    "U.options": "none",
    "U.slots": "by provider",
    "jobs": "see below",
    "jobs.retry": "see below",
    "jobs.tasks": "none",
    "idempotency": "see below",
    "webhooks": "see below",
    "webhooks.events": "`[completed, dead_letter, alert]`",
    "alerts": "see below",
    "limits": "see below",
    "apps": "none",
}


def check_simulated(model: str | None, options: Mapping[str, Any]) -> None:
    options_for(model or "simulated", options)


PROVIDERS = {"simulated": check_simulated}


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE) if found == language]


def keys() -> Iterator[tuple[str, str]]:
    """Every key of the records with its default as the page writes it."""
    for prefix, record in RECORDS:
        for field in dataclasses.fields(record):
            key = f"{prefix}{field.name}"
            default = field.default if isinstance(record, type) else getattr(record, field.name)
            if key not in PARTS:
                yield key, IN_WORDS.get(key) or _default(default)
    yield "M.retry.max_retries", "none"
    yield "jobs.retry.max_retries", "none"


def _default(value: Any) -> str:
    if value is dataclasses.MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return f"`{'null' if value is None else str(value).lower()}`"
    return f"`{value:.15g}`" if isinstance(value, int | float) else f"`{value}`"


def test_the_table_names_every_key_with_its_default_and_no_other() -> None:
    assert dict(ROW.findall(PAGE)) == dict(keys())


def test_no_key_is_in_the_table_twice() -> None:
    names = [name for name, _ in ROW.findall(PAGE)]

    assert len(names) == len(set(names))


def test_the_defaults_are_what_a_file_without_keys_gets() -> None:
    """A field's default and the reader's must be one thing."""
    settings = load(
        {"models": {"m": {"upstreams": [{"provider": "simulated"}]}}}, env={}, providers=PROVIDERS
    )

    assert settings.models["m"] == ModelSettings(upstreams=(UpstreamSettings(provider="simulated"),))
    assert (settings.database, settings.jobs, settings.idempotency, settings.listen, settings.limits) == (
        "sqlite",
        JobRules(),
        IdempotencyRules(),
        "127.0.0.1:8400",
        Limits(),
    )


def test_the_example_is_read_and_printed_as_the_page_shows(tmp_path: Path) -> None:
    path = tmp_path / "headgate.yaml"
    path.write_text(blocks("yaml")[0], encoding="utf-8")

    settings = load(path, env={}, providers=PROVIDERS, apps=wiring.APPS)

    assert summary(settings) == blocks("text")[0].rstrip("\n")
    assert settings.models["judge"].retry == RetryPolicy.bedrock()


def test_the_overrides_of_the_page_work_on_its_example() -> None:
    env = dict(line.split("=") for line in blocks("sh")[0].splitlines())

    settings = load(yaml.safe_load(blocks("yaml")[0]), env=env, providers=PROVIDERS, apps=wiring.APPS)

    assert settings.models["summary"].retry.max_attempts == 5
    assert settings.models["summary"].upstreams[0].gate.slots == 4
    assert settings.models["sketch/*"].timeouts.total_s == 60
    assert settings.jobs.workers == 8
    assert settings.jobs.tasks == ("news.tasks", "news.digest:app")


def test_the_report_is_the_one_the_page_shows() -> None:
    with pytest.raises(InvalidSettings) as caught:
        wiring.read_settings(yaml.safe_load(blocks("yaml")[1]), env={})

    assert str(caught.value) == blocks("text")[1].rstrip("\n")


def test_the_example_of_dotenv_is_read_as_the_page_says(tmp_path: Path) -> None:
    [example] = blocks("dotenv")
    (tmp_path / ".env").write_text(example, encoding="utf-8")
    assert read_dotenv(tmp_path / ".env") == {
        "OPENAI_API_KEY": "sk-…",
        "SMTP_PASSWORD": "taken as it is: $ # \\",
        "GREETING": 'with \n, \t, " and \\',
        "EMPTY": "",
    }
