"""Models that the surroundings offer where there is no file: a family for every provider somebody has credentials for.

Knows names only: of variables, of providers, of their options. What the options mean, the providers check.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headgate.settings.findings import Findings
from headgate.settings.reader import OptionsCheck, option_problems

logger = logging.getLogger("headgate")

OPENAI_API_KEY: Final = "OPENAI_API_KEY"
ANTHROPIC_API_KEY: Final = "ANTHROPIC_API_KEY"
OLLAMA_HOST: Final = "OLLAMA_HOST"
AWS_CREDENTIALS: Final = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)
AWS_REGION: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")


@dataclass(frozen=True, slots=True)
class _Offer:
    """A provider's family, made of what these variables hold."""

    provider: str
    signs: tuple[str, ...]
    """One of these must be set."""
    options: Callable[[Mapping[str, str]], dict[str, Any]]
    meant: bool = True
    """The variables speak of nothing else, so a mistake in them is a mistake in the settings."""


def _bedrock(env: Mapping[str, str]) -> dict[str, Any]:
    region = _first(env, AWS_REGION)
    return {} if region is None else {"region": env[region]}


_OFFERS: Final = (
    _Offer("openai", (OPENAI_API_KEY,), lambda env: {"api_key": env[OPENAI_API_KEY]}),
    _Offer("anthropic", (ANTHROPIC_API_KEY,), lambda env: {"api_key": env[ANTHROPIC_API_KEY]}),
    _Offer("ollama", (OLLAMA_HOST,), lambda env: {"base_url": env[OLLAMA_HOST]}),
    # Many a machine has AWS credentials for something else: then there is no reason to refuse a start.
    _Offer("bedrock", AWS_CREDENTIALS, _bedrock, meant=False),
)


def adopt_models(
    tree: dict[str, Any],
    env: Mapping[str, str],
    providers: Mapping[str, OptionsCheck],
    findings: Findings,
) -> None:
    """Add a family for each provider that the environment has credentials for."""
    for offer in _OFFERS:
        sign = _first(env, offer.signs)
        if sign is None or offer.provider not in providers:
            continue
        options = offer.options(env)
        family = f"{offer.provider}/*"
        if not offer.meant and (problems := option_problems(offer.provider, None, options, providers)):
            logger.info("%s is set, but there are no models %s: %s", sign, family, problems[0])
            continue
        tree["models"].setdefault(family, {"upstreams": [{"provider": offer.provider, **options}]})
        # Blamed for mistakes, and taken letter by letter: no `${` in it is filled in.
        findings.variables["models", family] = sign


def missing_families() -> dict[str, str]:
    """By the beginning of a model's name: why there may be no such models although there were some yesterday."""
    return {f"{offer.provider}/": _missing(f"{offer.provider}/*", offer) for offer in _OFFERS}


def _missing(family: str, offer: _Offer) -> str:
    source = offer.signs[0] if offer.meant else "AWS credentials"
    return (
        f"Without a settings file {family} comes from {source}; a settings file replaces the models from the environment:"
        f" add {family} under `models` in it"
    )


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    """An empty variable is none."""
    return next((name for name in names if env.get(name, "").strip()), None)
