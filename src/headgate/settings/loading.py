"""Settings from wherever they are: read, overridden, filled in, checked, and refused with all their mistakes."""

import os
from collections.abc import Mapping
from typing import Any

from headgate.settings.environment import override
from headgate.settings.filling import fill
from headgate.settings.findings import Findings
from headgate.settings.options import OptionsCheck, option_problems
from headgate.settings.places import Place
from headgate.settings.reader import read_settings
from headgate.settings.records import ALWAYS_THERE, SIMULATED, Settings
from headgate.settings.sources import read_source
from headgate.settings.upstreams import note_problem


def load(
    source: Settings | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    env: Mapping[str, str],
    providers: Mapping[str, OptionsCheck],
) -> Settings:
    """Read the settings; raises `InvalidSettings` with every mistake in them.

    `source` is a file's path, a mapping of the same shape, settings built in code (only their providers are
    checked), or None: `./headgate.yaml` where it exists, else the defaults. `providers` are the known ones.
    """
    findings = Findings()
    if isinstance(source, Settings):
        _check_providers(source, providers, findings)
        findings.refuse()
        return source
    tree = read_source(source, findings)
    _add_simulated(tree)
    override(tree, env, findings)
    _add_simulated(tree)
    tree = fill(tree, env, findings)
    settings = read_settings(tree, providers, findings)
    findings.refuse(tree)
    return settings


def _add_simulated(tree: dict[str, Any]) -> None:
    """The simulated models are always there; `models: {}` or none at all leaves just them."""
    if tree.get("models") is None:
        tree["models"] = {}
    if isinstance(tree["models"], dict):
        for name in ALWAYS_THERE:
            tree["models"].setdefault(name, {"upstreams": [{"provider": SIMULATED}]})


def _check_providers(settings: Settings, providers: Mapping[str, OptionsCheck], findings: Findings) -> None:
    for name, model in settings.models.items():
        for index, upstream in enumerate(model.upstreams):
            place: Place = ("models", name, "upstreams", index)
            findings.secrets.add_options(upstream.options, place)
            for problem in option_problems(upstream.provider, upstream.model, upstream.options, providers):
                note_problem(problem, upstream.options, findings, place)
