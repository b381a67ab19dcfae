"""The settings in force, in a few lines to read at a start. Providers' options and passwords are never among them."""

from collections.abc import Iterator
from dataclasses import fields

from headgate.calls.routes import Balance
from headgate.core.alert_rules import AlertRules
from headgate.core.gate_rules import GateRules, Order
from headgate.core.idempotency import IdempotencyRules
from headgate.core.job_rules import JobRules
from headgate.core.pacing import PacingRules
from headgate.core.retry import RetryPolicy
from headgate.core.timeouts import Timeouts
from headgate.core.webhook import WebhookRules
from headgate.settings.database import shown_database
from headgate.settings.records import PATIENCE_S, ModelSettings, Settings, UpstreamSettings, simulated_models


def summary(settings: Settings) -> str:
    """The effective configuration: where things go, jobs, then every model with a line for each upstream."""
    places = f"data in {settings.data_dir}, logs in {settings.logs_path}"
    traced = ", traced" if settings.tracing else ""
    lines = [
        f"{places}, database {shown_database(settings.database)}{traced}",
        f"jobs: {', '.join(_job_words(settings.jobs))}",
        f"  {'; '.join(_task_words(settings.jobs))}",
        _idempotency_words(settings.idempotency),
        f"webhooks: {', '.join(_webhook_words(settings.webhooks))}",
        f"alerts: {', '.join(_alert_words(settings.alerts))}",
        f"http: {', '.join(_front_words(settings))}",
        f"storage: {settings.limits.tenant_bytes:,} bytes per tenant, {settings.limits.min_free_bytes:,} kept free",
        f"apps: {', '.join(settings.apps) or 'none'}",
    ]
    for name, model in settings.models.items():
        lines += [f"{name}: {_worst_case(model)}", f"  {'; '.join(_model_words(model))}"]
        lines += [
            f"  {number}. {', '.join(_upstream_words(upstream))}"
            for number, upstream in enumerate(model.upstreams, start=1)
        ]
    return "\n".join(lines)


def brief(settings: Settings) -> str:
    """What a start tells: where the data is, and each model's worst case."""
    places = f"data in {settings.data_dir}, logs in {settings.logs_path}"
    lines = [f"{places}; all settings: headgate config check"]
    named = {name: model for name, model in settings.models.items() if model != simulated_models().get(name)}
    lines += [f"{name}: {_worst_case(model)}" for name, model in named.items()]
    if not named:
        lines.append(
            "only the simulated model answers: name models in headgate.yaml, or without that file set"
            " OPENAI_API_KEY, ANTHROPIC_API_KEY or OLLAMA_HOST"
        )
    return "\n".join(lines)


def _job_words(jobs: JobRules) -> Iterator[str]:
    yield "1 worker" if jobs.workers == 1 else f"{jobs.workers} workers"
    yield f"lease {jobs.lease_s:.15g} s"
    yield f"timeout {jobs.timeout_s:.15g} s"
    yield f"expired after {jobs.expires_after_s:.15g} s"
    yield f"revived after {jobs.revive_after_s:.15g} s"
    yield f"kept {jobs.retention_days:.15g} days"
    yield f"up to {jobs.max_pending:,} pending"
    yield f"{jobs.max_pending_per_tenant:,} per tenant"


def _task_words(jobs: JobRules) -> Iterator[str]:
    yield _retry_words(jobs.retry)
    yield f"tasks from {', '.join(jobs.tasks)}" if jobs.tasks else "no tasks"


def _idempotency_words(rules: IdempotencyRules) -> str:
    kept = f"keys kept {rules.retention_h:.15g} h"
    return f"idempotency: {kept}, mismatch {rules.mismatch_status}, unknown {rules.unknown}"


def _webhook_words(webhooks: WebhookRules) -> Iterator[str]:
    """Without the URL, which may hold a token."""
    yield (
        f"{', '.join(webhooks.events)} to the address set" if webhooks.url else "to jobs' own addresses only"
    )
    if webhooks.allow_private:
        yield "private ones too"
    yield f"answered within {webhooks.timeout_s:.15g} s"


def _alert_words(alerts: AlertRules) -> Iterator[str]:
    yield f"above {alerts.dead_letters_per_hour:.15g} dead letters an hour"
    yield f"{alerts.retry_failure_rate * 100:.6g} % failed retries"
    yield f"{alerts.duplicate_key_rate * 100:.6g} % repeated keys"
    yield f"{alerts.job_delay_s:.15g} s of delay"
    yield f"{alerts.rejected_rate * 100:.6g} % rejected requests"
    yield f"{alerts.error_rate * 100:.6g} % failed ones"
    yield f"{alerts.server_error_rate * 100:.6g} % internal errors"
    if alerts.latency_p99_s is not None:
        yield f"{alerts.latency_p99_s:.15g} s until 99 of 100 are answered"
    yield f"{alerts.loop_lag_s:.15g} s of loop lag"
    if alerts.webhook:
        yield "told to an address of their own"


def _front_words(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    yield f"listens at {settings.listen}"
    yield f"bodies up to {limits.body_bytes:,} bytes"
    yield f"files up to {limits.file_bytes:,} bytes"
    yield f"headers within {limits.header_timeout_s:.15g} s"
    yield f"bodies within {limits.body_timeout_s:.15g} s"
    yield f"{limits.connections:,} connections"
    yield f"{limits.waiting_bytes:,} bytes of waiting bodies"
    yield f"drained within {limits.drain_s:.15g} s"


def _worst_case(model: ModelSettings) -> str:
    """Every upstream uses all its attempts; the deadline over everything ends it whatever they do."""
    count = model.retry.max_attempts * len(model.upstreams)
    calls = "1 call" if count == 1 else f"{count} calls"
    uncounted = "" if model.retry.count_throttles else "; 429s not counted"
    return f"worst case: {calls}, {model.timeouts.total_s:.15g} s{uncounted}"


def _model_words(model: ModelSettings) -> Iterator[str]:
    yield _retry_words(model.retry)
    yield _timeout_words(model.timeouts)
    if model.balance is not Balance.ORDERED:
        yield f"balance {model.balance}"
    if model.gather is not None:
        yield f"gather {model.gather.size} within {model.gather.wait_ms:g} ms"
    if model.stream_rescue:
        yield "stream rescue"
    if model.patience_s != PATIENCE_S:
        yield f"patience {model.patience_s:g} s"
    if not model.wait:
        yield "calls do not wait"
    if model.hedge is not None:
        yield f"a second attempt after {model.hedge.after}, for {model.hedge.share:.0%} of calls"


def _retry_words(retry: RetryPolicy) -> str:
    if retry.max_attempts == 1:
        return "no retries"
    waits = f"{retry.first_wait_s:g} s × {retry.factor:g} up to {retry.longest_wait_s:g} s"
    counted = ", 429s count" if retry.count_throttles else ""
    return f"{retry.max_attempts} attempts, {waits}, jitter {retry.jitter}{counted}"


def _timeout_words(timeouts: Timeouts) -> str:
    return (
        f"timeouts: connect {timeouts.connect_s:g} s, first token {timeouts.stream_first_token_s:g} s, "
        f"idle {timeouts.idle_s:g} s, total {timeouts.total_s:g} s"
    )


def _upstream_words(upstream: UpstreamSettings) -> Iterator[str]:
    gate = upstream.gate
    name = upstream.provider if upstream.model is None else f"{upstream.provider}/{upstream.model}"
    yield f"{name}: {'1 slot' if gate.slots == 1 else f'{gate.slots} slots'}"
    yield f"{gate.reserved_slots} reserved"
    yield f"depth {gate.depth or 'unlimited'}"
    yield from _pacing_words(gate.pacing)
    yield from _gate_words(gate)
    flags = {
        "not adaptive": not gate.adaptive,
        "spill": upstream.spill,
        "no breaker": not gate.breaker,
        f"retry budget {upstream.retry_budget}": upstream.retry_budget is not None,
    }
    yield from (words for words, differs in flags.items() if differs)


def _pacing_words(pacing: PacingRules) -> Iterator[str]:
    if pacing.interval_s:
        yield f"every {pacing.interval_s:g} s"
    if pacing.requests_per_minute is not None:
        yield f"{pacing.requests_per_minute} requests/min"
    if pacing.tokens_per_minute is not None:
        yield f"{pacing.tokens_per_minute} tokens/min"


def _gate_words(gate: GateRules) -> Iterator[str]:
    for field in fields(gate):
        value = getattr(gate, field.name)
        if field.name.endswith("_s") and value != field.default:
            yield f"{field.name} {value:g}"
    if gate.preempt:
        yield "preempt"
    if gate.interactive_order is not Order.FIFO:
        yield f"interactive {gate.interactive_order}"
