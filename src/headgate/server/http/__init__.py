"""The listening side: HTTP/1.1 for one ASGI application, with hard limits. Knows nothing of LLMs.

Stricter than the standard where leniency has been used to smuggle requests; see docs/decisions/0012-own-http-front.md.
"""

from headgate.server.http.limits import HttpLimits
from headgate.server.http.server import Server

__all__ = ["HttpLimits", "Server"]
