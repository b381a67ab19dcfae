"""Which names may become labels. Whatever clients ask for, their number stays bounded.

A configured model has its own name. A member of a family gets one when it has answered for the first time: names that
only clients believe in are counted under the family, `openai/*`.
"""

from collections.abc import Callable, Iterable
from typing import Final

MOST_MEMBERS: Final = 100
"""Members of families with a name of their own. With 1,000 the page has 6 MB and takes half a second to write."""
MOST_TASKS: Final = 200
OTHER: Final = "other"


class BoundedNames:
    """So many names; those that come later are `other`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def of(self, name: str) -> str:
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


class ModelNames:
    """Models and their upstreams."""

    def __init__(self, configured: Callable[[], Iterable[str]], most_members: int = MOST_MEMBERS) -> None:
        self._configured = configured
        self._room = most_members
        self._known: set[str] = set()
        self._upstreams: set[str] = set()
        """Those that were seen with a known model."""

    def of(self, model: str) -> str:
        return model if model in self._known else self._unproven(model)

    def pair(self, model: str, upstream: str) -> tuple[str, str]:
        """The labels of a model and of one of its upstreams."""
        if model in self._known or (label := self._unproven(model)) == model:
            self._upstreams.add(upstream)
            return model, upstream
        return label, _kind(upstream)

    def upstream(self, upstream: str) -> str:
        """The label of an upstream of which nobody says whose it is."""
        return upstream if upstream in self._upstreams else _kind(upstream)

    def answered(self, model: str) -> None:
        """It exists: if it is a member of a family, it has earned its own name."""
        if model not in self._known and self._room > 0 and self._unproven(model) != model:
            self._room -= 1
            self._known.add(model)

    def _unproven(self, model: str) -> str:
        for name in self._configured():
            if name == model:
                self._known.add(model)
                return model
            if name.endswith("/*") and model.startswith(name[:-1]):
                return name
        return OTHER


def _kind(upstream: str) -> str:
    return f"{upstream.partition('/')[0]}/*"
