"""How things stand, for whoever shows it."""

from collections.abc import Sequence
from typing import Protocol

from headgate.core.alerts import Alert


class AlertBoard(Protocol):
    """What is wrong for so long or so often that somebody must look."""

    def active(self) -> Sequence[Alert]: ...

    def recent(self) -> Sequence[Alert]:
        """Those that have cleared, the latest first."""
        ...
