"""A provider's own options: only the provider can judge them, so its check is called with them."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from headgate.core.errors import InvalidRequest
from headgate.core.problems import InvalidSettings, Problem
from headgate.core.spelling import did_you_mean
from headgate.settings.scalars import shown

OptionsCheck = Callable[[str | None, Mapping[str, Any]], None]
"""Given the provider's model name and the options, raises `InvalidSettings` when they are wrong."""


def option_problems(
    provider: str, model: str | None, options: Mapping[str, Any], providers: Mapping[str, OptionsCheck]
) -> tuple[Problem, ...]:
    check = providers.get(provider)
    if check is None:
        hint = did_you_mean(provider, providers) or ";"
        known = ", ".join(sorted(providers))
        return (Problem("provider", f"no provider is called {shown(provider)}{hint} known: {known}"),)
    try:
        check(model, options)
    except InvalidSettings as error:
        return error.problems
    except InvalidRequest as error:
        problem = Problem(error.param or "", str(error))
        # A model that the provider does not know says nothing about the options: they are checked without it.
        return (problem, *option_problems(provider, None, options, providers)) if model else (problem,)
    return ()


def option_of(problem: Problem) -> tuple[str, str]:
    """The option a problem is about, and the rest of its path: `script[0].status` is `script`, `[0].status`."""
    match = re.match(r"[^.\[]*", problem.path)
    end = match.end() if match else 0
    return problem.path[:end], problem.path[end:]
