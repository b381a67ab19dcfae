"""The listening side: HTTP/1.1 with hard limits, for an ASGI application or for who takes exchanges as they are. Knows nothing of LLMs.

Stricter than the standard where leniency has been used to smuggle requests; see docs/decisions/0012-own-http-front.md.
"""

from headgate.server.http.asgi import Asgi
from headgate.server.http.exchange import Exchange
from headgate.server.http.limits import HttpLimits
from headgate.server.http.server import Server

__all__ = ["Asgi", "Exchange", "HttpLimits", "Server"]
