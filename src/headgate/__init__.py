"""Headgate: dependable LLM calls. Honest queues, calm retries, one deadline.

>>> import headgate
>>> async def main():
...     async with headgate.open() as gateway:
...         reply = await gateway.complete(model="simulated", messages=[{"role": "user", "content": "Hi"}])
...         return reply.content
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.blocking import BlockingGateway
    from headgate.calls.holding import HeldSlot
    from headgate.calls.reply_stream import ReplyStream
    from headgate.calls.retry import RetryPolicy, classify
    from headgate.calls.router import ResponseRouter
    from headgate.core.answer import Answer, Chunk, Reply, Usage
    from headgate.core.call import Call, Format, Lane, Request
    from headgate.core.errors import (
        BacklogFull,
        CallFailed,
        CheckBroken,
        DeadlineExceeded,
        DeadlineUnreachable,
        Draining,
        DuplicateRequest,
        HeadgateError,
        InvalidRequest,
        JobFailed,
        KeyInProgress,
        KeyMismatch,
        ModelNotAllowed,
        ModelPaused,
        NotAllowed,
        OutputInvalid,
        PayloadTooLarge,
        Preempted,
        ProviderFailure,
        QueueFull,
        QuotaExceeded,
        RateLimited,
        RecordExists,
        Refused,
        RequestRejected,
        RetryBudgetSpent,
        SettingsError,
        StateConflict,
        StoreUnavailable,
        StreamCut,
        Unauthorized,
        UnknownBatch,
        UnknownFile,
        UnknownJob,
        UnknownModel,
        UnknownRequest,
        UnknownTask,
        UpstreamBroken,
        UpstreamMisconfigured,
        UpstreamThrottled,
        UpstreamUnavailable,
    )
    from headgate.core.events import AttemptEnded, Responded, RetryScheduled
    from headgate.core.failures import Failure, FailureKind, Scope
    from headgate.core.job import Attempt, DeadLetter, Job, JobState, Reason
    from headgate.core.ports.provider import Provider
    from headgate.core.problems import InvalidSettings, Review
    from headgate.core.record import Record
    from headgate.core.retry import Jitter
    from headgate.fetching import fetch
    from headgate.gateway import Gateway
    from headgate.mounting import App, AppCall, AppDoor, AppKeyed, AppReply, AppRoute, AppStream
    from headgate.observe.prices import Prices
    from headgate.runner.context import Context
    from headgate.runner.jobs import JobHandle
    from headgate.runner.outcomes import Reject, RetryLater, Skip
    from headgate.runner.payloads import record
    from headgate.runner.submission import Submission
    from headgate.runner.tasks import Task, task
    from headgate.settings import Settings
    from headgate.transport.errors import AddressRefused, PageTooLarge, UrlRefused
    from headgate.transport.fetch import Fetched, FetchRules
    from headgate.wiring import open, open_blocking, read_settings  # noqa: A004 - `headgate.open(…)` is how it reads

__version__ = "0.2.0"

# Loaded when first asked for, so that `import headgate` costs nothing and core can be imported alone.
_HOMES = {
    "headgate.core.answer": ("Answer", "Chunk", "Reply", "Usage"),
    "headgate.core.call": ("Call", "Format", "Lane", "Request"),
    "headgate.core.ports.provider": ("Provider",),
    "headgate.blocking": ("BlockingGateway",),
    "headgate.core.errors": (
        "BacklogFull",
        "CallFailed",
        "CheckBroken",
        "DeadlineExceeded",
        "DeadlineUnreachable",
        "Draining",
        "DuplicateRequest",
        "HeadgateError",
        "InvalidRequest",
        "JobFailed",
        "KeyInProgress",
        "KeyMismatch",
        "ModelNotAllowed",
        "ModelPaused",
        "NotAllowed",
        "OutputInvalid",
        "PayloadTooLarge",
        "Preempted",
        "ProviderFailure",
        "QueueFull",
        "QuotaExceeded",
        "RateLimited",
        "RecordExists",
        "Refused",
        "RequestRejected",
        "RetryBudgetSpent",
        "SettingsError",
        "StateConflict",
        "StoreUnavailable",
        "StreamCut",
        "Unauthorized",
        "UnknownBatch",
        "UnknownFile",
        "UnknownJob",
        "UnknownRequest",
        "UnknownModel",
        "UnknownTask",
        "UpstreamBroken",
        "UpstreamMisconfigured",
        "UpstreamThrottled",
        "UpstreamUnavailable",
    ),
    "headgate.core.events": ("AttemptEnded", "Responded", "RetryScheduled"),
    "headgate.core.failures": (
        "Failure",
        "FailureKind",
        "Scope",
    ),
    "headgate.core.job": (
        "Attempt",
        "DeadLetter",
        "Job",
        "JobState",
        "Reason",
    ),
    "headgate.core.problems": ("InvalidSettings", "Review"),
    "headgate.core.record": ("Record",),
    "headgate.core.retry": ("Jitter",),
    "headgate.calls.holding": ("HeldSlot",),
    "headgate.calls.retry": (
        "RetryPolicy",
        "classify",
    ),
    "headgate.calls.router": ("ResponseRouter",),
    "headgate.calls.reply_stream": ("ReplyStream",),
    "headgate.fetching": ("fetch",),
    "headgate.gateway": ("Gateway",),
    "headgate.mounting": ("App", "AppCall", "AppReply", "AppRoute", "AppStream", "AppDoor", "AppKeyed"),
    "headgate.observe.prices": ("Prices",),
    "headgate.runner.context": ("Context",),
    "headgate.runner.jobs": ("JobHandle",),
    "headgate.runner.outcomes": (
        "Reject",
        "RetryLater",
        "Skip",
    ),
    "headgate.runner.payloads": ("record",),
    "headgate.runner.submission": ("Submission",),
    "headgate.runner.tasks": (
        "Task",
        "task",
    ),
    "headgate.settings": ("Settings",),
    "headgate.transport.errors": ("AddressRefused", "PageTooLarge", "UrlRefused"),
    "headgate.transport.fetch": ("FetchRules", "Fetched"),
    "headgate.wiring": (
        "open",
        "open_blocking",
        "read_settings",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AddressRefused",
    "Answer",
    "App",
    "AppCall",
    "AppDoor",
    "AppKeyed",
    "AppReply",
    "AppRoute",
    "AppStream",
    "Attempt",
    "AttemptEnded",
    "BacklogFull",
    "BlockingGateway",
    "Call",
    "CallFailed",
    "CheckBroken",
    "Chunk",
    "Context",
    "DeadLetter",
    "DeadlineExceeded",
    "DeadlineUnreachable",
    "Draining",
    "DuplicateRequest",
    "Failure",
    "FailureKind",
    "FetchRules",
    "Fetched",
    "Format",
    "Gateway",
    "HeadgateError",
    "HeldSlot",
    "InvalidRequest",
    "InvalidSettings",
    "Jitter",
    "Job",
    "JobFailed",
    "JobHandle",
    "JobState",
    "KeyInProgress",
    "KeyMismatch",
    "Lane",
    "ModelNotAllowed",
    "ModelPaused",
    "NotAllowed",
    "OutputInvalid",
    "PageTooLarge",
    "PayloadTooLarge",
    "Preempted",
    "Prices",
    "Provider",
    "ProviderFailure",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "Reason",
    "Record",
    "RecordExists",
    "Refused",
    "Reject",
    "Reply",
    "ReplyStream",
    "Request",
    "RequestRejected",
    "Responded",
    "ResponseRouter",
    "RetryBudgetSpent",
    "RetryLater",
    "RetryPolicy",
    "RetryScheduled",
    "Review",
    "Scope",
    "Settings",
    "SettingsError",
    "Skip",
    "StateConflict",
    "StoreUnavailable",
    "StreamCut",
    "Submission",
    "Task",
    "Unauthorized",
    "UnknownBatch",
    "UnknownFile",
    "UnknownJob",
    "UnknownModel",
    "UnknownRequest",
    "UnknownTask",
    "UpstreamBroken",
    "UpstreamMisconfigured",
    "UpstreamThrottled",
    "UpstreamUnavailable",
    "UrlRefused",
    "Usage",
    "__version__",
    "classify",
    "fetch",
    "open",
    "open_blocking",
    "read_settings",
    "record",
    "task",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'headgate' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
