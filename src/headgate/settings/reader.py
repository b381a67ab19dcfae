"""The plain tree of settings into records. Every part is read to its end, whatever was wrong before it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from headgate.core.problems import Review
from headgate.core.retry import RetryPolicy
from headgate.core.spelling import did_you_mean
from headgate.core.timeouts import Timeouts
from headgate.dispatch.routes import Gather
from headgate.settings.fields import Record, build, check_keys, names_of, section, values_for
from headgate.settings.findings import Findings
from headgate.settings.options import OptionsCheck
from headgate.settings.places import TOP, Place
from headgate.settings.records import ModelSettings, Settings, UpstreamSettings, check_gather, name_mistake
from headgate.settings.scalars import shown, sort_of
from headgate.settings.upstreams import read_upstream

PRESETS: Final = {"bedrock": RetryPolicy.bedrock, "web": RetryPolicy.web, "agents": RetryPolicy.agents}
_MAX_RETRIES: Final = "max_retries"


@dataclass(frozen=True, kw_only=True)
class _Retries:
    """The other way to say `max_attempts`."""

    max_retries: int


def read_settings(
    tree: Mapping[str, Any], providers: Mapping[str, OptionsCheck], findings: Findings
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
    return Settings(models=models, **values_for(Settings, tree, findings, TOP))


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
        "timeouts": _read_record(Timeouts, body.get("timeouts"), findings, (*place, "timeouts")),
        "gather": _read_gather(body.get("gather"), findings, (*place, "gather")),
        **values_for(ModelSettings, body, findings, place),
    }
    return ModelSettings(upstreams=upstreams, **parts) if upstreams else None


def _read_upstreams(
    body: Mapping[str, Any], providers: Mapping[str, OptionsCheck], findings: Findings, place: Place
) -> tuple[UpstreamSettings, ...]:
    entries, place = body.get("upstreams"), (*place, "upstreams")
    if not isinstance(entries, list) or not entries:
        wrong = f", not {sort_of(entries)}" if entries else ""
        findings.reject(place, f"must be a list with at least one upstream{wrong}")
        return ()
    read = [read_upstream(entry, providers, findings, (*place, index)) for index, entry in enumerate(entries)]
    return tuple(upstream for upstream in read if upstream is not None)


def _read_retry(value: Any, findings: Findings, place: Place) -> RetryPolicy:
    """A preset's name, or a policy's fields; `max_retries` counts all attempts but the first."""
    if isinstance(value, str):
        return _preset(str(value), findings, place)
    body = section(value, findings, place) or {}
    check_keys(body, names_of(RetryPolicy) | {_MAX_RETRIES}, findings, place)
    if _MAX_RETRIES not in body:
        return build(RetryPolicy, body, findings, place)
    if "max_attempts" in body:
        findings.add((*place, _MAX_RETRIES), "says the same as max_attempts: give only one of them")
    return build(RetryPolicy, {**body, **_attempts(body, findings, place)}, findings, place)


def _preset(name: str, findings: Findings, place: Place) -> RetryPolicy:
    if name in PRESETS:
        return PRESETS[name]()
    hint = did_you_mean(name, PRESETS)
    findings.reject(place, f"must be a mapping or one of {', '.join(PRESETS)}, not {shown(name)}{hint}")
    return RetryPolicy()


def _attempts(body: Mapping[str, Any], findings: Findings, place: Place) -> dict[str, int]:
    retries = values_for(_Retries, body, findings, place)[_MAX_RETRIES]
    review = Review()
    review.number(_MAX_RETRIES, retries, most=99, whole=True)
    findings.take(review.problems, place)
    return {} if review.problems or "max_attempts" in body else {"max_attempts": retries + 1}


def _read_gather(value: Any, findings: Findings, place: Place) -> Gather | None:
    if value is None:
        return None
    gather = _read_record(Gather, value, findings, place)
    review = Review()
    check_gather(review, gather)
    findings.take(review.problems, place)
    return None if review.problems else gather


def _read_record(record: type[Record], value: Any, findings: Findings, place: Place) -> Record:
    body = section(value, findings, place) or {}
    check_keys(body, names_of(record), findings, place)
    return build(record, body, findings, place)
