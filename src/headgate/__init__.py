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
    from headgate.core.errors import (
        CallFailed,
        CheckBroken,
        DeadlineExceeded,
        DeadlineUnreachable,
        Draining,
        DuplicateRequest,
        HeadgateError,
        InvalidRequest,
        OutputInvalid,
        Preempted,
        ProviderFailure,
        QueueFull,
        Refused,
        RequestRejected,
        SettingsError,
        StreamCut,
        UnknownModel,
        UpstreamBroken,
        UpstreamMisconfigured,
        UpstreamThrottled,
        UpstreamUnavailable,
    )
    from headgate.core.failures import Failure, FailureKind, Scope
    from headgate.core.messages import Answer, Chunk, Lane, Reply, Request, Usage
    from headgate.core.problems import InvalidSettings
    from headgate.core.retry import Jitter
    from headgate.dispatch.holding import HeldSlot
    from headgate.dispatch.retry import RetryPolicy, classify
    from headgate.dispatch.router import ResponseRouter
    from headgate.dispatch.streams import ReplyStream
    from headgate.gateway import Gateway
    from headgate.settings import Settings
    from headgate.wiring import open, open_blocking  # noqa: A004 - `headgate.open(…)` is how it reads

__version__ = "0.1.0"

# Loaded when first asked for, so that `import headgate` costs nothing and core can be imported alone.
_HOMES = {
    "headgate.blocking": ("BlockingGateway",),
    "headgate.core.errors": (
        "CallFailed",
        "CheckBroken",
        "DeadlineExceeded",
        "DeadlineUnreachable",
        "Draining",
        "DuplicateRequest",
        "HeadgateError",
        "InvalidRequest",
        "OutputInvalid",
        "Preempted",
        "ProviderFailure",
        "QueueFull",
        "Refused",
        "RequestRejected",
        "SettingsError",
        "StreamCut",
        "UnknownModel",
        "UpstreamBroken",
        "UpstreamMisconfigured",
        "UpstreamThrottled",
        "UpstreamUnavailable",
    ),
    "headgate.core.failures": ("Failure", "FailureKind", "Scope"),
    "headgate.core.messages": ("Answer", "Chunk", "Lane", "Reply", "Request", "Usage"),
    "headgate.core.problems": ("InvalidSettings",),
    "headgate.core.retry": ("Jitter",),
    "headgate.dispatch.holding": ("HeldSlot",),
    "headgate.dispatch.retry": ("RetryPolicy", "classify"),
    "headgate.dispatch.router": ("ResponseRouter",),
    "headgate.dispatch.streams": ("ReplyStream",),
    "headgate.gateway": ("Gateway",),
    "headgate.settings": ("Settings",),
    "headgate.wiring": ("open", "open_blocking"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Answer",
    "BlockingGateway",
    "CallFailed",
    "CheckBroken",
    "Chunk",
    "DeadlineExceeded",
    "DeadlineUnreachable",
    "Draining",
    "DuplicateRequest",
    "Failure",
    "FailureKind",
    "Gateway",
    "HeadgateError",
    "HeldSlot",
    "InvalidRequest",
    "InvalidSettings",
    "Jitter",
    "Lane",
    "OutputInvalid",
    "Preempted",
    "ProviderFailure",
    "QueueFull",
    "Refused",
    "Reply",
    "ReplyStream",
    "Request",
    "RequestRejected",
    "ResponseRouter",
    "RetryPolicy",
    "Scope",
    "Settings",
    "SettingsError",
    "StreamCut",
    "UnknownModel",
    "UpstreamBroken",
    "UpstreamMisconfigured",
    "UpstreamThrottled",
    "UpstreamUnavailable",
    "Usage",
    "__version__",
    "classify",
    "open",
    "open_blocking",
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
