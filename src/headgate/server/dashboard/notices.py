"""What a form has brought about, told on the page that follows. The address holds a token, not the words: nobody can
make a link that puts words of their own on our page.
"""

from collections.abc import Callable
from typing import Final

MOST: Final = 200
PARAMETER: Final = "notice"


class Notices:
    """The last ones. Reloading the page tells it again."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._kept: dict[str, str] = {}

    def leave(self, words: str) -> str:
        token = self._new_id()[:16]
        self._kept[token] = words
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        return token

    def read(self, token: str | None) -> str | None:
        return None if token is None else self._kept.get(token)
