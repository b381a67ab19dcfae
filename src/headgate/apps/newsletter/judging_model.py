"""Which model judges: one of the settings, or the one that BEDROCK_* describe; for the samples alone a simulated one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

import headgate
from headgate.apps.newsletter.environment import MODEL_ID, REQUEST_INTERVAL, Bedrock, read_environment
from headgate.apps.newsletter.options import NewsletterOptions

OWN_MODEL: Final = "newsletter"
SIMULATED: Final = "simulated"
_ANSWERS: Final = frozenset({"answers", "answers_by_pattern"})
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
    simulated: bool = False
    """Whether one of its upstreams is the simulated provider."""


def choose_model(
    settings: headgate.Settings, options: NewsletterOptions, env: Mapping[str, str]
) -> tuple[headgate.Settings, JudgingModel]:
    """The settings, with the newsletter's own model where none of theirs was chosen."""
    bedrock = read_environment(env)
    parallel = options.parallel or bedrock.max_parallel
    name, setting = options.model or OWN_MODEL, f"models.{options.model or OWN_MODEL}.upstreams"
    if options.model is None and OWN_MODEL not in settings.models:
        if not bedrock.model:
            _refuse_to_simulate(options)
        made = headgate.read_settings({"models": {OWN_MODEL: _own_model(bedrock, env)}}, env={})
        settings = replace(settings, models={**settings.models, OWN_MODEL: made.models[OWN_MODEL]})
        setting = bedrock.model_setting if bedrock.model else f"models.{OWN_MODEL}"
    return settings, JudgingModel(name, parallel, setting, simulated=_is_simulated(settings, name))


def _refuse_to_simulate(options: NewsletterOptions) -> None:
    """Without a model only the samples are judged, and only into files: a simulated verdict must not pass for a real one."""
    own = {"feeds of its own": options.feeds is not None, "receivers": bool(options.mail_to)}
    if any(own.values()):
        review = headgate.Review()
        found = " and ".join(what for what, there in own.items() if there)
        review.add(
            "apps.newsletter.model",
            f"is not set, and the newsletter has {found}. Name a model of the settings, or set {MODEL_ID} in the"
            f" environment or in .env. To try it without a model, set it to {SIMULATED}: each mail then says so",
        )
        review.refuse()


def _is_simulated(settings: headgate.Settings, name: str) -> bool:
    families = (key for key in settings.models if key.endswith("/*") and name.startswith(key[:-1]))
    key = name if name in settings.models else next(families, None)
    return key is not None and any(one.provider == SIMULATED for one in settings.models[key].upstreams)


def with_simulated_judges(settings: headgate.Settings) -> headgate.Settings:
    """The settings, with verdicts for answers where the simulated provider has none of its own."""
    models = {}
    for name, model in settings.models.items():
        upstreams = tuple(
            replace(one, options={**one.options, "answers_by_pattern": simulated_judge()})
            if one.provider == SIMULATED and _ANSWERS.isdisjoint(one.options)
            else one
            for one in model.upstreams
        )
        models[name] = replace(model, upstreams=upstreams)
    return replace(settings, models=models)


def _own_model(bedrock: Bedrock, env: Mapping[str, str]) -> dict[str, Any]:
    if bedrock.model:
        upstream = {"provider": "bedrock", "model": bedrock.model, "region": bedrock.region}
        return bedrock.model_settings(upstream, interval_s=bedrock.request_interval_s)
    # The simulation has no quota to spare; it is spaced only when somebody wants to see that.
    interval_s = bedrock.request_interval_s if env.get(REQUEST_INTERVAL) else 0.0
    return bedrock.model_settings({"provider": SIMULATED}, interval_s=interval_s)


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
