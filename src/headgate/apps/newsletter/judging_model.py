"""Which model judges: one of the settings, the one that BEDROCK_* describe, or a simulated one. And where it is set."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

import headgate
from headgate.apps.newsletter.environment import REQUEST_INTERVAL, Bedrock, read_environment
from headgate.apps.newsletter.options import NewsletterOptions

OWN_MODEL: Final = "newsletter"
_TITLE: Final = r'(?i)"title": ?"(?P<title>(?=(?:[^"\\]|\\.)*?(?:@))(?:[^"\\]|\\.){0,200})'
"""A JSON text that has these words in it; as much of it as fits into a summary."""
_TOPICS: Final = {
    "ACT_NOW": ("security|vulnerab|breach|outage|CVE-", 0.95, "security"),
    "IGNORE": ("celebrity|discount|sponsored|giveaway|horoscope", 0.9, "noise"),
    "THINK": ("architect|design|lessons|queue|retry|database|postgres", 0.8, "engineering"),
    "FYI": ("", 0.6, "news"),
}
"""What the simulation finds in a title, and its verdict then."""


@dataclass(frozen=True, slots=True)
class JudgingModel:
    """The model's name, how many calls it bears at once, and the setting to look at when it is wrong."""

    name: str
    parallel: int
    setting: str


def choose_model(
    settings: headgate.Settings, options: NewsletterOptions, env: Mapping[str, str]
) -> tuple[headgate.Settings, JudgingModel]:
    """The settings, with the newsletter's own model where none of theirs was chosen."""
    bedrock = read_environment(env)
    parallel = options.parallel or bedrock.max_parallel
    if options.model is not None:
        return settings, JudgingModel(options.model, parallel, f"models.{options.model}.upstreams")
    if OWN_MODEL in settings.models:
        return settings, JudgingModel(OWN_MODEL, parallel, f"models.{OWN_MODEL}.upstreams")
    setting = bedrock.model_setting if bedrock.model else f"models.{OWN_MODEL}"
    made = headgate.read_settings({"models": {OWN_MODEL: _own_model(bedrock, env)}}, env={})
    models = {**settings.models, OWN_MODEL: made.models[OWN_MODEL]}
    return replace(settings, models=models), JudgingModel(OWN_MODEL, parallel, setting)


def _own_model(bedrock: Bedrock, env: Mapping[str, str]) -> dict[str, Any]:
    if bedrock.model:
        upstream = {"provider": "bedrock", "model": bedrock.model, "region": bedrock.region}
        return bedrock.model_settings(upstream, interval_s=bedrock.request_interval_s)
    # The simulation has no quota to spare; it is spaced only when somebody wants to see that.
    interval_s = bedrock.request_interval_s if env.get(REQUEST_INTERVAL) else 0.0
    return bedrock.model_settings(
        {"provider": "simulated", "answers_by_pattern": simulated_judge()}, interval_s=interval_s
    )


def simulated_judge() -> dict[str, str]:
    """Answers of the simulated provider in the contract's shape, by words in the title."""
    answers = {}
    for label, (words, confidence, tag) in _TOPICS.items():
        judgement = {
            "interest_label": label,
            "confidence": confidence,
            "summary": "Simulated verdict: @",
            "tags": [tag],
        }
        # The title comes out of JSON and goes into JSON: it is escaped already.
        answer = msgspec.json.encode(judgement).decode().replace("@", r"\g<title>")
        answers[_TITLE.replace("@", words)] = answer
    return answers
