"""The article summariser: summaries now, streamed or queued, each article once."""

from headgate.apps.articles.mounted import app
from headgate.apps.articles.options import GATE_VARIABLES, VARIABLES, Options

__all__ = ["GATE_VARIABLES", "VARIABLES", "Options", "app"]
