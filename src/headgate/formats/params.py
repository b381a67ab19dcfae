"""OpenAI's request parameters, sifted for formats that do not have them all.

Nothing that would change the answer is dropped in silence: what a format cannot say is refused by name. Dropped are
`null`, values that ask for nothing (`n: 1`, `logprobs: false`), and what only concerns OpenAI's own service.
"""

from collections.abc import Mapping
from typing import Any, Final

from headgate.core.errors import ProviderFailure
from headgate.core.failures import Failure, FailureKind

Neutral = tuple[object, ...]

HARMLESS: Final = frozenset(
    {
        "model",
        "messages",
        "stream",
        "stream_options",
        "store",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
    }
)
"""Said elsewhere, or about speed and bookkeeping at OpenAI: no word of the answer depends on them."""

UNTRANSLATED: Final[Mapping[str, Neutral]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""What neither our answers nor the translated formats can carry, with the values that ask for nothing."""


def sift(
    params: Mapping[str, Any], *, provider: str, harmless: frozenset[str], untranslated: Mapping[str, Neutral]
) -> dict[str, Any]:
    """The parameters that are left to translate or to pass on. Raises for the first that cannot be said."""
    left = {}
    for name, value in params.items():
        if value is None or name in harmless:
            continue
        neutral = untranslated.get(name)
        if neutral is None:
            left[name] = value
        elif value not in neutral:
            raise refused(name, f"cannot be asked of {provider}; leave it out")
    return left


def refused(param: str, problem: str) -> ProviderFailure:
    """The request asks for what this format cannot say, or says it wrongly."""
    return ProviderFailure(
        Failure(kind=FailureKind.REJECTED, message=f"{param} {problem}", code="unsupported_parameter")
    )
