"""Counts what a run costs, from the gateway's events: calls, retries, dollars. The judge adds its fallbacks."""

import headgate


class Meter:
    """A listener of one gateway, for one model."""

    def __init__(self, model: str) -> None:
        self.calls = 0
        self.retries = 0
        self.fallbacks = 0
        self._model = model
        self._costs: dict[str, float] = {}

    def __call__(self, event: object) -> None:
        match event:
            case headgate.AttemptEnded(model=self._model):
                self.calls += 1
            case headgate.RetryScheduled(model=self._model):
                self.retries += 1
            case headgate.Responded(model=self._model, cost_usd=cost_usd, request_id=request_id) if cost_usd:
                self._costs[request_id] = cost_usd

    def cost_of(self, reply: headgate.Reply) -> float | None:
        """What this answer cost, told once; None when nobody knows."""
        return self._costs.pop(reply.request_id, None)
