"""Outbound HTTP/1.1, small and fast. Knows sockets, bytes and deadlines; knows no provider and retries nothing."""

from headgate.transport.client import Transport
from headgate.transport.endpoint import Endpoint, Origin
from headgate.transport.errors import TransportError
from headgate.transport.fetch import Fetched, Fetcher, FetchRules, Posted
from headgate.transport.headers import Headers
from headgate.transport.limits import Limits
from headgate.transport.proxies import Proxies
from headgate.transport.response import Response

__all__ = [
    "Endpoint",
    "FetchRules",
    "Fetched",
    "Fetcher",
    "Headers",
    "Limits",
    "Origin",
    "Posted",
    "Proxies",
    "Response",
    "Transport",
    "TransportError",
]
