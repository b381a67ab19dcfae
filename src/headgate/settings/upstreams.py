"""One upstream of a model: its own keys, its gate's keys beside them, and all else for the provider."""

from collections.abc import Mapping
from typing import Any, Final

from headgate.core.gate_rules import GateRules
from headgate.core.pacing import PacingRules
from headgate.core.problems import InvalidSettings, Problem
from headgate.core.spelling import did_you_mean
from headgate.settings.fields import build, names_of, section, values_for
from headgate.settings.findings import Findings
from headgate.settings.options import OptionsCheck, option_of, option_problems
from headgate.settings.places import Place
from headgate.settings.records import UpstreamSettings
from headgate.settings.scalars import Filled

OWN_KEYS: Final = names_of(UpstreamSettings) - {"gate", "options"}
GATE_KEYS: Final = (names_of(GateRules) | names_of(PacingRules)) - {"pacing"}
"""In a file they stand beside the upstream's own keys."""
KNOWN_KEYS: Final = OWN_KEYS | GATE_KEYS


def read_upstream(
    entry: Any, providers: Mapping[str, OptionsCheck], findings: Findings, place: Place
) -> UpstreamSettings | None:
    """The upstream, or None when it has no usable name. All its mistakes are noted either way."""
    body = section(entry, findings, place)
    if body is None:
        return None
    options = {key: value for key, value in body.items() if key not in KNOWN_KEYS}
    findings.secrets.add_options(options, place)
    pacing = build(PacingRules, body, findings, place)
    gate = build(GateRules, body, findings, place, pacing=pacing)
    values = values_for(UpstreamSettings, body, findings, place)
    if "provider" not in values:
        findings.add((*place, "provider"), "is missing: every upstream names its provider")
        return None
    values |= {"gate": gate, "options": _unmarked(options)}
    for problem in option_problems(values["provider"], values.get("model"), values["options"], providers):
        note_problem(problem, options, findings, place)
    return _composed(values, findings, place)


def _composed(values: dict[str, Any], findings: Findings, place: Place) -> UpstreamSettings | None:
    try:
        return UpstreamSettings(**values)
    except InvalidSettings as error:
        findings.take(error.problems, place)
    return None


def note_problem(problem: Problem, options: Mapping[str, Any], findings: Findings, place: Place) -> None:
    """Note what a provider says about an upstream, at the very key where there is one."""
    option, rest = option_of(problem)
    if option in options:
        # The provider knows its own options only; the word may be a slip for one of the upstream's keys.
        hint = "" if "did you mean" in problem.message else _own_key_hint(option)
        findings.add((*place, option), f"{problem.message}{hint}", tail=rest)
    elif option in OWN_KEYS:
        findings.add((*place, option), problem.message, tail=rest)
    else:
        findings.add(place, problem.message, tail=f".{problem.path}" if problem.path else "")


def _own_key_hint(option: str) -> str:
    return did_you_mean(option, KNOWN_KEYS, likeness=0.8)


def _unmarked(value: Any) -> Any:
    """Providers get plain text: where it came from is none of their business."""
    match value:
        case dict():
            return {key: _unmarked(inner) for key, inner in value.items()}
        case list():
            return [_unmarked(inner) for inner in value]
        case Filled():
            return str(value)
        case _:
            return value
