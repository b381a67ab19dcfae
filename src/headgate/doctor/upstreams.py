"""Each upstream, asked for free: is it there, does it let us in, does it have the model?"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind
from headgate.core.ports.provider import Probing, Provider, Sighting
from headgate.core.spelling import did_you_mean
from headgate.doctor.finding import Finding, fail, ok, warn
from headgate.settings.records import ALWAYS_THERE, ModelSettings

PROBE_S: Final = 5.0
_MOST_NAMED: Final = 5


class Asked(NamedTuple):
    """One upstream of one model."""

    check: str
    model: str | None
    """None in a family, whose members are named by those who call them."""


async def ask_upstream(asked: Asked, provider: Provider) -> Finding:
    if not isinstance(provider, Probing):
        return ok(asked.check, "lives in this process: nothing to reach")
    try:
        async with asyncio.timeout(PROBE_S):
            return judge_sighting(asked, await provider.probe())
    except ProviderFailure as error:
        return judge_failure(asked, error.failure)
    except TimeoutError:
        advice = "is it running and reachable from here? Check base_url, the network and proxies"
        return fail(asked.check, f"no answer within {PROBE_S:g} s", advice)


def judge_sighting(asked: Asked, sighting: Sighting) -> Finding:
    unchecked = "" if asked.model is None else f", so {asked.model} is not checked"
    match sighting:
        case Sighting(has_model=False, advice=str(advice)) if advice:
            return fail(asked.check, f"answers, but {sighting.remark}", advice)
        case Sighting(has_model=None, advice=str(advice)) if advice:
            return warn(asked.check, f"answers; {sighting.remark}{unchecked}", advice)
        case _ if asked.model is None:
            count = f", {len(sighting.models)} models there" if sighting.models else ""
            return ok(asked.check, f"answers{count}")
        case Sighting(has_model=None):
            return ok(asked.check, f"answers; {sighting.remark}{unchecked}")
        case Sighting(has_model=True):
            return ok(asked.check, f"answers, and has {asked.model}")
    return fail(asked.check, f"answers, but has no {asked.model}", _instead(asked, sighting))


def judge_failure(asked: Asked, failure: Failure) -> Finding:
    advice = {
        FailureKind.MISCONFIGURED: "check this upstream's key, address and permissions",
        FailureKind.THROTTLED: "it asks to wait: look at the account's limits",
    }.get(failure.kind, "is it running and reachable from here? Check base_url, the network and proxies")
    return fail(asked.check, failure.message, advice)


def only_simulated() -> Finding:
    return warn(
        "upstreams",
        "none: only the simulated model answers",
        "name some under `models` in headgate.yaml, or set OPENAI_API_KEY, ANTHROPIC_API_KEY or OLLAMA_HOST",
    )


def upstreams_of(models: Mapping[str, ModelSettings]) -> Iterator[tuple[str, int, Asked]]:
    """Model, place among its upstreams, and what to ask of it."""
    for name, model in models.items():
        if name in ALWAYS_THERE:
            continue
        for index, upstream in enumerate(model.upstreams):
            number = f" {index + 1}." if len(model.upstreams) > 1 else ""
            what = "/".join(filter(None, (upstream.provider, upstream.model)))
            check = name if what == name else f"{name}{number} {what}"
            yield name, index, Asked(check, upstream.model)


def _instead(asked: Asked, sighting: Sighting) -> str:
    model = asked.model or ""
    if sighting.remark:
        return sighting.remark
    if not sighting.models:
        return "correct `model`"
    named = ", ".join(sighting.models[:_MOST_NAMED]) + (", …" if len(sighting.models) > _MOST_NAMED else "")
    return f"correct `model`{did_you_mean(model, sighting.models) or ';'} there are {named}"
