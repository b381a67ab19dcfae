"""The plain tree of settings into records. Every part is read to its end, whatever was wrong before it.

An upstream has its own keys, its gate's keys beside them, and all else is for the provider: only the provider can
judge that, so its check is called with it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from headgate.calls.routes import Gather
from headgate.core.alert_rules import AlertRules
from headgate.core.errors import InvalidRequest
from headgate.core.gate_rules import GateRules
from headgate.core.hedging import HedgeRules
from headgate.core.idempotency import IdempotencyRules
from headgate.core.job_rules import JobRules
from headgate.core.pacing import PacingRules
from headgate.core.problems import InvalidSettings, Problem, Review
from headgate.core.retry import RetryPolicy
from headgate.core.spelling import did_you_mean
from headgate.core.timeouts import Timeouts
from headgate.core.webhook import WebhookRules
from headgate.settings.apps import AppForm, read_apps
from headgate.settings.database import SQLITE, database_mistake
from headgate.settings.environment import DATABASE_URL
from headgate.settings.fields import build, check_keys, names_of, read_record, section, values_for
from headgate.settings.findings import Findings
from headgate.settings.front import LISTEN, Limits, listen_mistake
from headgate.settings.places import TOP, Place
from headgate.settings.records import (
    SIMULATED,
    ModelSettings,
    Settings,
    UpstreamSettings,
    check_gather,
    name_mistake,
    secret_key_mistake,
)
from headgate.settings.yaml_text import Filled, shown, sort_of

T = TypeVar("T")
OptionsCheck = Callable[[str | None, Mapping[str, Any]], None]
"""Given the provider's model name and the options, raises `InvalidSettings` when they are wrong."""

OWN_KEYS: Final = names_of(UpstreamSettings) - {"gate", "options"}
GATE_KEYS: Final = (names_of(GateRules) | names_of(PacingRules)) - {"pacing"}
"""In a file they stand beside the upstream's own keys."""
KNOWN_KEYS: Final = OWN_KEYS | GATE_KEYS

HOSTED_SLOTS: Final = 64
USUAL_SLOTS: Final = {"ollama": 2, SIMULATED: 8}
"""A hosted API says by itself when there are too many calls; a machine of one's own gets slow."""

PRESETS: Final = {"bedrock": RetryPolicy.bedrock, "web": RetryPolicy.web, "agents": RetryPolicy.agents}
_MAX_RETRIES: Final = "max_retries"
_REPLACED: Final = {"budget": "`budget` was replaced by `retry_budget: <share>`"}
_FORMAT: Final = "openai"
"""The provider for every service that speaks its format."""


@dataclass(frozen=True, kw_only=True)
class _Retries:
    """The other way to say `max_attempts`."""

    max_retries: int


def read_settings(
    tree: Mapping[str, Any],
    providers: Mapping[str, OptionsCheck],
    findings: Findings,
    apps: Mapping[str, AppForm],
) -> Settings:
    """Settings, as far as they could be read: `findings` says whether they may be used."""
    check_keys(tree, names_of(Settings), findings, TOP)
    models = {}
    for name, body in (section(tree.get("models"), findings, ("models",)) or {}).items():
        place = ("models", name)
        if mistake := name_mistake(name):
            findings.add(place, mistake)
        model = _read_model(body, providers, findings, place)
        if model is not None and not mistake:
            models[name] = model
    webhooks = _read_with_secrets(
        WebhookRules, tree.get("webhooks"), findings, ("webhooks",), "url", "secret"
    )
    return Settings(
        models=models,
        jobs=_read_jobs(tree.get("jobs"), findings, ("jobs",)),
        idempotency=read_record(IdempotencyRules, tree.get("idempotency"), findings, ("idempotency",)),
        webhooks=webhooks,
        alerts=_read_with_secrets(AlertRules, tree.get("alerts"), findings, ("alerts",), "webhook"),
        limits=read_record(Limits, tree.get("limits"), findings, ("limits",)),
        apps=read_apps(tree.get("apps"), apps, models, webhooks, findings, ("apps",)),
        **_single_values(tree, findings),
    )


def _single_values(tree: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    if type(tree.get("listen")) is int:
        # A port alone: as text its message says how to write the address.
        tree = {**tree, "listen": str(tree["listen"])}
    if tree.get("secret_key") is not None:
        findings.secrets.add(("secret_key",), tree["secret_key"])
    values = values_for(Settings, tree, findings, TOP)
    if mistake := secret_key_mistake(values.get("secret_key")):
        findings.reject(("secret_key",), mistake)
        del values["secret_key"]
    if mistake := database_mistake(values.get("database", SQLITE)):
        place: Place = ("database",)
        found = findings.variable_of(place) == DATABASE_URL
        way_out = f"; set database: {SQLITE} to leave {DATABASE_URL} aside" if found else ""
        findings.reject(place, f"{mistake}{way_out}")
        del values["database"]
    if mistake := listen_mistake(values.get("listen", LISTEN)):
        findings.reject(("listen",), mistake)
        del values["listen"]
    return values


def _read_jobs(value: Any, findings: Findings, place: Place) -> JobRules:
    body = section(value, findings, place) or {}
    check_keys(body, names_of(JobRules), findings, place)
    retry = _read_policy(body.get("retry"), JobRules().retry, findings, (*place, "retry"))
    if retry.count_throttles:
        findings.reject(
            (*place, "retry", "count_throttles"), "429s never cost a job an attempt: leave it out"
        )
    return build(JobRules, body, findings, place, retry=retry)


def _read_with_secrets(kind: type[T], value: Any, findings: Findings, place: Place, *secrets: str) -> T:
    """A URL may hold a token in its path: it is as secret as a secret."""
    for key in secrets:
        if isinstance(value, dict) and value.get(key) is not None:
            findings.secrets.add((*place, key), value[key])
    return read_record(kind, value, findings, place)


def _read_model(
    body: Any, providers: Mapping[str, OptionsCheck], findings: Findings, place: Place
) -> ModelSettings | None:
    body = section(body, findings, place)
    if body is None:
        return None
    check_keys(body, names_of(ModelSettings), findings, place)
    upstreams = _read_upstreams(body, providers, findings, place)
    parts = {
        "retry": _read_retry(body.get("retry"), findings, (*place, "retry")),
        "timeouts": read_record(Timeouts, body.get("timeouts"), findings, (*place, "timeouts")),
        "gather": _read_gather(body.get("gather"), findings, (*place, "gather")),
        "hedge": _read_hedge(body.get("hedge"), findings, (*place, "hedge")),
        **values_for(ModelSettings, body, findings, place),
    }
    if not upstreams:
        return None
    try:
        return ModelSettings(upstreams=upstreams, **parts)
    except InvalidSettings as error:
        findings.take(error.problems, place)
        return ModelSettings(upstreams=upstreams)


def _read_upstreams(
    body: Mapping[str, Any], providers: Mapping[str, OptionsCheck], findings: Findings, place: Place
) -> tuple[UpstreamSettings, ...]:
    entries, place = body.get("upstreams"), (*place, "upstreams")
    if not isinstance(entries, list) or not entries:
        wrong = f", not {sort_of(entries)}" if entries else ""
        findings.reject(place, f"must be a list with at least one upstream{wrong}")
        return ()
    read = [
        _read_upstream(entry, providers, findings, (*place, index)) for index, entry in enumerate(entries)
    ]
    return tuple(upstream for upstream in read if upstream is not None)


def _read_retry(value: Any, findings: Findings, place: Place) -> RetryPolicy:
    """A preset's name, or a policy's fields."""
    if isinstance(value, str):
        return _preset(str(value), findings, place)
    return _read_policy(value, RetryPolicy.sdk(), findings, place)


def _read_policy(value: Any, usual: RetryPolicy, findings: Findings, place: Place) -> RetryPolicy:
    """A policy's fields over the usual ones; `max_retries` counts all attempts but the first."""
    body = section(value, findings, place) or {}
    check_keys(body, names_of(RetryPolicy) | {_MAX_RETRIES}, findings, place)
    if _MAX_RETRIES in body:
        if "max_attempts" in body:
            findings.add((*place, _MAX_RETRIES), "says the same as max_attempts: give only one of them")
        body = {**body, **_attempts(body, findings, place)}
    kept = {name: getattr(usual, name) for name in names_of(usual) - body.keys()}
    return build(RetryPolicy, body, findings, place, **kept)


def _preset(name: str, findings: Findings, place: Place) -> RetryPolicy:
    if name in PRESETS:
        return PRESETS[name]()
    hint = did_you_mean(name, PRESETS)
    findings.reject(place, f"must be a mapping or one of {', '.join(PRESETS)}, not {shown(name)}{hint}")
    return RetryPolicy.sdk()


def _attempts(body: Mapping[str, Any], findings: Findings, place: Place) -> dict[str, int]:
    retries = values_for(_Retries, body, findings, place)[_MAX_RETRIES]
    review = Review()
    review.number(_MAX_RETRIES, retries, most=99, whole=True)
    findings.take(review.problems, place)
    return {} if review.problems or "max_attempts" in body else {"max_attempts": retries + 1}


def _read_gather(value: Any, findings: Findings, place: Place) -> Gather | None:
    if value is None:
        return None
    gather = read_record(Gather, value, findings, place)
    review = Review()
    check_gather(review, gather)
    findings.take(review.problems, place)
    return None if review.problems else gather


def _read_hedge(value: Any, findings: Findings, place: Place) -> HedgeRules | None:
    return None if value is None else read_record(HedgeRules, value, findings, place)


def _read_upstream(
    entry: Any, providers: Mapping[str, OptionsCheck], findings: Findings, place: Place
) -> UpstreamSettings | None:
    """The upstream, or None when it has no usable name. All its mistakes are noted either way."""
    body = section(entry, findings, place)
    if body is None:
        return None
    options = {key: value for key, value in body.items() if key not in KNOWN_KEYS}
    findings.secrets.add_options(options, place)
    pacing = build(PacingRules, body, findings, place)
    values = values_for(UpstreamSettings, body, findings, place)
    slots = {"slots": USUAL_SLOTS.get(values.get("provider", ""), HOSTED_SLOTS)}
    gate = build(GateRules, {**slots, **body}, findings, place, pacing=pacing)
    if "provider" not in values:
        findings.add((*place, "provider"), "is missing: every upstream names its provider")
        return None
    values |= {"gate": gate, "options": _unmarked(options)}
    for problem in option_problems(values["provider"], values.get("model"), values["options"], providers):
        note_problem(problem, options, findings, place)
    return _composed(values, findings, place)


def _composed(values: dict[str, Any], findings: Findings, place: Place) -> UpstreamSettings | None:
    try:
        return UpstreamSettings(**values)
    except InvalidSettings as error:
        findings.take(error.problems, place)
    return None


def note_problem(problem: Problem, options: Mapping[str, Any], findings: Findings, place: Place) -> None:
    """Note what a provider says about an upstream, at the very key where there is one."""
    option, rest = _option_of(problem)
    if option in options:
        # The provider knows its own options only; the word may be a slip for one of the upstream's keys.
        hint = "" if "did you mean" in problem.message else _own_key_hint(option)
        findings.add((*place, option), f"{problem.message}{hint}", tail=rest)
    elif option in OWN_KEYS:
        findings.add((*place, option), problem.message, tail=rest)
    else:
        findings.add(place, problem.message, tail=f".{problem.path}" if problem.path else "")


def _own_key_hint(option: str) -> str:
    if option in _REPLACED:
        return f"; {_REPLACED[option]}"
    return did_you_mean(option, KNOWN_KEYS, likeness=0.8)


def _unmarked(value: Any) -> Any:
    """Providers get plain text: where it came from is none of their business."""
    match value:
        case dict():
            return {key: _unmarked(inner) for key, inner in value.items()}
        case list():
            return [_unmarked(inner) for inner in value]
        case Filled():
            return str(value)
        case _:
            return value


def option_problems(
    provider: str, model: str | None, options: Mapping[str, Any], providers: Mapping[str, OptionsCheck]
) -> tuple[Problem, ...]:
    check = providers.get(provider)
    if check is None:
        hint = did_you_mean(provider, providers, likeness=0.7)
        known = ", ".join(sorted(providers))
        message = f"no provider is called {shown(provider)}{hint or ';'} known: {known}"
        if not hint and _FORMAT in providers:
            message += (
                f". For a service that speaks OpenAI's format write provider: {_FORMAT}, with its base_url"
            )
        return (Problem("provider", message),)
    try:
        check(model, options)
    except InvalidSettings as error:
        return error.problems
    except InvalidRequest as error:
        problem = Problem(error.param or "", str(error))
        # A model that the provider does not know says nothing about the options: they are checked without it.
        return (problem, *option_problems(provider, None, options, providers)) if model else (problem,)
    return ()


def _option_of(problem: Problem) -> tuple[str, str]:
    """The option a problem is about, and the rest of its path: `script[0].status` is `script`, `[0].status`."""
    match = re.match(r"[^.\[]*", problem.path)
    end = match.end() if match else 0
    return problem.path[:end], problem.path[end:]
