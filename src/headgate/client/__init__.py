"""A gateway from afar: calls, jobs, batches over HTTP, and an outbox for when it cannot be reached."""

from headgate.client.asynchronous import AsyncClient
from headgate.client.blocking import Client
from headgate.client.errors import GatewayUnreachable
from headgate.client.feeder import Progress
from headgate.client.flush import Flushed
from headgate.client.outbox import Outbox
from headgate.client.outbox_file import Entry

__all__ = ["AsyncClient", "Client", "Entry", "Flushed", "GatewayUnreachable", "Outbox", "Progress"]
