"""What only a client can meet. Everything else it raises is what the gateway itself would have raised."""

from headgate.core.errors import InvalidRequest, Refused

COME_BACK_S = 5.0


class GatewayUnreachable(Refused):
    """No answer came: nobody listens there, the network is down, or something else than a gateway answered."""

    code = "gateway_unreachable"

    def __init__(
        self, message: str, *, sent: bool, retry_after_s: float = COME_BACK_S, waiting_helps: bool = True
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.sent = sent
        """True when the request went out: it may have been carried out, and only its answer is missing."""
        self.waiting_helps = waiting_helps
        """False when what answered is no gateway: another URL is needed, not another time."""


class NotFound(InvalidRequest):
    """There is no such thing there, or it is somebody else's."""

    code = "not_found"
