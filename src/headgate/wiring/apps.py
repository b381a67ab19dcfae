"""The table of applications: the record of each one's options, and how it is built from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headgate.apps import articles, bookmarks
from headgate.apps.newsletter import NewsletterOptions, newsletter_app
from headgate.gateway import Gateway
from headgate.mounting import App, AppRoute


@dataclass(frozen=True, slots=True)
class AppKind:
    """One line of the table."""

    options: type[Any]
    """A frozen dataclass with working defaults: `apps: {name: {}}` in the settings mounts it."""
    build: Callable[[Any], App]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its first design, and the options they set where nothing else does."""
    gate_variables: Mapping[str, str] = field(default_factory=dict)
    """The same for the upstreams of its model."""
    gate_defaults: Mapping[str, int] = field(default_factory=dict)
    """Keys of those upstreams that have another default than elsewhere."""


APPS: Final[Mapping[str, AppKind]] = {
    "articles": AppKind(
        articles.Options, articles.app, articles.VARIABLES, articles.GATE_VARIABLES, articles.GATE_DEFAULTS
    ),
    "bookmarks": AppKind(bookmarks.BookmarkOptions, bookmarks.build),
    "newsletter": AppKind(NewsletterOptions, newsletter_app),
}


def build_apps(settings: Mapping[str, Any]) -> list[App]:
    """Those that the settings list."""
    return [APPS[name].build(options) for name, options in settings.items()]


def build_routes(settings: Mapping[str, Any], gateway: Gateway) -> list[AppRoute]:
    """What they serve over this gateway."""
    return [route for app in build_apps(settings) for route in app.routes(gateway)]
