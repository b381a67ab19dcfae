"""What the library logs, on stderr, one readable line each. Anybody's words may be in it, so it is made harmless."""

import logging
import sys
from typing import Final

from headgate.cli.words import printable

_LAYOUT: Final = "%(asctime)s %(levelname)-7s %(message)s"


class _Lines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__(_LAYOUT, "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(level: int) -> None:
    """From now on, whatever is logged at this level or above; also by tasks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
