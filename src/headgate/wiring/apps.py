"""The table of applications: the record of each one's options, and how it is built from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headgate.apps.newsletter import NewsletterOptions, newsletter_app
from headgate.mounting import App


@dataclass(frozen=True, slots=True)
class AppKind:
    """One line of the table."""

    options: type[Any]
    """A frozen dataclass with working defaults: `apps: {name: {}}` in the settings mounts it."""
    build: Callable[[Any], App]


APPS: Final[Mapping[str, AppKind]] = {
    "newsletter": AppKind(NewsletterOptions, newsletter_app),
}


def build_apps(settings: Mapping[str, Any]) -> list[App]:
    """Those that the settings list."""
    return [APPS[name].build(options) for name, options in settings.items()]
