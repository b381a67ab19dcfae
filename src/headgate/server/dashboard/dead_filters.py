"""Which dead letters a page is about: filters as they stand in addresses and forms, in words, and as the gateway takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headgate.core.access import covers
from headgate.core.errors import ModelNotAllowed
from headgate.core.job import Cause
from headgate.runner.dead_filter import DeadFilters
from headgate.server.dashboard.foreign import joined, word
from headgate.server.dashboard.html import Child, el, group
from headgate.server.dashboard.page import Viewer

NAMES: Final = ("reason", "task", "model", "class")
TENANT: Final = "tenant"


@dataclass(frozen=True, slots=True)
class Which:
    """What was asked for; an empty text says nothing."""

    given: Mapping[str, str]
    tenant: str | None = None
    """Whose, where an operator says so."""

    @classmethod
    def read(cls, asked: Mapping[str, str]) -> "Which":
        given = {name: value for name in NAMES if (value := asked.get(name, "").strip())}
        return cls(given, asked.get(TENANT, "").strip() or None)

    @classmethod
    def alike(cls, cause: Cause, *, everybody: bool) -> "Which":
        """Those of one cause; `everybody`: whoever looks must say whose they mean."""
        given = (cause.reason, cause.task, cause.model, cause.error_class)
        return cls(
            {name: value for name, value in zip(NAMES, given, strict=True) if value},
            cause.tenant if everybody else None,
        )

    @property
    def query(self) -> dict[str, str]:
        return {**self.given, **({} if self.tenant is None else {TENANT: self.tenant})}

    def filters(self) -> DeadFilters:
        return DeadFilters(
            task=self.given.get("task"),
            reason=self.given.get("reason"),
            model=self.given.get("model"),
            error_class=self.given.get("class"),
        )

    def scope(self, viewer: Viewer) -> str | None:
        """Whose are looked at: operators may choose, everybody else has their own."""
        return self.tenant if viewer.scope is None else viewer.scope

    def words(self) -> Child:
        """`reason exhausted, task chat`."""
        return joined([group(name, " ", el("strong", word(value))) for name, value in self.query.items()])


def check_model(viewer: Viewer, model: str | None) -> None:
    """A key for some models must not spend on others by way of their dead letters."""
    if model is not None and not covers(viewer.models, model):
        raise ModelNotAllowed(f"your key may not use the model {model[:100]!r}")


def check_models(viewer: Viewer, which: Which) -> None:
    if viewer.models and "model" not in which.given:
        raise ModelNotAllowed("your key is for some models only: choose a model first")
    check_model(viewer, which.given.get("model"))
