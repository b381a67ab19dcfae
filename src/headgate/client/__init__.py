"""A gateway from afar: calls, jobs, batches over HTTP, and an outbox for when it cannot be reached."""

from headgate.client.asynchronous import AsyncClient
from headgate.client.blocking import Client
from headgate.client.errors import GatewayUnreachable
from headgate.client.feeder import Progress
from headgate.client.outbox import Entry, Flushed, Outbox

__all__ = ["AsyncClient", "Client", "Entry", "Flushed", "GatewayUnreachable", "Outbox", "Progress"]
