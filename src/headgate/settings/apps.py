"""The mounted applications in the settings: their options, their models, and the variables their first designs knew."""

from collections.abc import Mapping
from typing import Any, Protocol

from headgate.core.operator_pause import covers
from headgate.core.spelling import did_you_mean
from headgate.core.webhook import WebhookEvent, WebhookRules
from headgate.settings.environment import value_of
from headgate.settings.fields import check_keys, read_record, section
from headgate.settings.findings import Findings
from headgate.settings.places import Place
from headgate.settings.records import SIMULATED, ModelSettings
from headgate.settings.yaml_text import shown


class AppForm(Protocol):
    """What the settings must know of an application."""

    @property
    def options(self) -> type[Any]:
        """A frozen dataclass with working defaults."""
        ...

    @property
    def variables(self) -> Mapping[str, str]:
        """Environment variable → the option that it sets where nothing else does."""
        ...

    @property
    def gate_variables(self) -> Mapping[str, str]:
        """Environment variable → the key that it sets at those upstreams of the application's model that have none."""
        ...

    @property
    def gate_defaults(self) -> Mapping[str, int]:
        """Keys of those upstreams → what they are where nothing sets them."""
        ...


def adopt_for_apps(
    tree: dict[str, Any], env: Mapping[str, str], apps: Mapping[str, AppForm], findings: Findings
) -> None:
    """Take over what the surroundings say to the applications that are mounted."""
    mounted = tree.get("apps")
    if not isinstance(mounted, dict):
        return
    for name, form in apps.items():
        if name not in mounted or not isinstance(mounted[name] or {}, dict):
            continue
        body = mounted[name] = mounted[name] or {}
        _adopt(body, env, form.variables, findings, ("apps", name))
        model = body.get("model", getattr(form.options(), "model", None))
        for place, upstream in _upstreams_of(tree, model):
            _adopt(upstream, env, form.gate_variables, findings, place)
            for key, value in form.gate_defaults.items():
                upstream.setdefault(key, value)


def _adopt(
    body: dict[str, Any], env: Mapping[str, str], keys: Mapping[str, str], findings: Findings, place: Place
) -> None:
    for variable, key in keys.items():
        if env.get(variable, "").strip() and key not in body:
            body[key] = value_of(env[variable])
            findings.variables[*place, key] = variable


def _upstreams_of(tree: Mapping[str, Any], model: Any) -> list[tuple[Place, dict[str, Any]]]:
    models = tree.get("models")
    if not isinstance(models, dict) or not isinstance(model, str):
        return []
    name = _name_in(models, model)
    body = models.get(name)
    listed = body.get("upstreams") if isinstance(body, dict) else None
    entries = enumerate(listed if isinstance(listed, list) else ())
    return [(("models", name, "upstreams", index), one) for index, one in entries if isinstance(one, dict)]


def read_apps(
    value: Any,
    apps: Mapping[str, AppForm],
    models: Mapping[str, ModelSettings],
    webhooks: WebhookRules,
    findings: Findings,
    place: Place,
) -> dict[str, Any]:
    """Who is listed is mounted: `articles: {}` with all its defaults."""
    body = section(value, findings, place) or {}
    check_keys(body, frozenset(apps), findings, place)
    sent = webhooks.url is not None and WebhookEvent.JOB_COMPLETED.topic in webhooks.events
    read = {}
    for name, options in body.items():
        if name in apps:
            read[name] = _read_options(apps[name].options, options, models, findings, (*place, name))
            if sent and "model" not in (options or {}):
                _refuse_to_simulate(read[name], models, findings, (*place, name, "model"))
    return read


def _refuse_to_simulate(
    options: Any, models: Mapping[str, ModelSettings], findings: Findings, place: Place
) -> None:
    """A result that leaves the machine is simulated only where the settings say so."""
    model = models.get(getattr(options, "model", None) or "")
    if model is not None and any(upstream.provider == SIMULATED for upstream in model.upstreams):
        findings.add(
            place,
            f"is not set, and webhooks.url gets the app's results: name a model, or {SIMULATED} on purpose",
        )


def _read_options(
    record: type[Any], value: Any, models: Mapping[str, ModelSettings], findings: Findings, place: Place
) -> Any:
    options = read_record(record, value, findings, place)
    model = getattr(options, "model", None)
    if model is not None and _name_in(models, model) not in models:
        hint = did_you_mean(model, models) or ";"
        known = ", ".join(sorted(models))
        findings.reject((*place, "model"), f"no model is called {shown(model)}{hint} known: {known}")
    return options


def _name_in(models: Mapping[str, Any], model: str) -> str:
    """The model's own name in the settings, or its family's."""
    return next((name for name in (model, *models) if name in models and covers(name, model)), model)
