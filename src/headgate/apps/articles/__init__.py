"""The article summariser: summaries now, streamed or queued, each article once."""

from headgate.apps.articles.mounted import app
from headgate.apps.articles.options import GATE_DEFAULTS, GATE_VARIABLES, VARIABLES, Options
from headgate.apps.articles.remote import queue, status, summarize
from headgate.apps.articles.shapes import Queued, Summarized, SummaryStatus

__all__ = [
    "GATE_DEFAULTS",
    "GATE_VARIABLES",
    "VARIABLES",
    "Options",
    "Queued",
    "Summarized",
    "SummaryStatus",
    "app",
    "queue",
    "status",
    "summarize",
]
