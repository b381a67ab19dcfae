"""Whose jobs a worker claims next: tenants take turns, and so do the models of each. Names are handed in, and counts.

1. Free places are dealt one by one, a tenant after the other; a tenant's place goes to the next of its models that
   takes a call. Who goes first moves on with every place, so that no name is better than another.
2. While another tenant has due jobs that could run here, a tenant holds at most half of the worker's places. Alone it
   may use all.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping

from headgate.core.ports.claims import MAX_LINES, Want


class ClaimTurns:
    """Deals a worker's free places, and remembers whose turn was last."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._tenant = ""
        self._models: dict[str, str] = {}
        """By tenant, the model that had the last turn."""

    def deal(
        self,
        lines: Mapping[str, Iterable[str]],
        free: int,
        *,
        places: Callable[[str], int],
        running: Mapping[str, int],
        held: Mapping[str, int],
    ) -> list[Want]:
        """What to claim. `places` says how many jobs of a model may run here at all, `running` how many do, and `held`
        how many places each tenant has.
        """
        if free <= 0:
            return []
        turns, contenders = self._turns(lines, free, places, running)
        # Rounded up: of an odd number two tenants may use all.
        most = -(-self._workers // 2) if contenders > 1 else self._workers
        wants: Counter[tuple[str, str]] = Counter()
        by_model: Counter[str] = Counter()
        by_tenant: Counter[str] = Counter()
        while free > 0 and turns:
            tenant, models = turns.popleft()
            while models and by_model[models[0][0]] >= models[0][1]:
                models.popleft()
            if not models or held.get(tenant, 0) + by_tenant[tenant] >= most:
                continue
            model = models[0][0]
            models.rotate(-1)
            turns.append((tenant, models))
            wants[tenant, model] += 1
            by_model[model] += 1
            by_tenant[tenant] += 1
            free -= 1
            self._tenant, self._models[tenant] = tenant, model
        if len(self._models) > 2 * MAX_LINES:
            self._models = {tenant: model for tenant, model in self._models.items() if tenant in lines}
        return [Want(model, count, tenant) for (tenant, model), count in wants.items()]

    def _turns(
        self,
        lines: Mapping[str, Iterable[str]],
        free: int,
        places: Callable[[str], int],
        running: Mapping[str, int],
    ) -> tuple[deque[tuple[str, deque[tuple[str, int]]]], int]:
        """The tenants in their turn, each with its models that have room and how much; and how many have due jobs."""
        turns: deque[tuple[str, deque[tuple[str, int]]]] = deque()
        contenders = 0
        known: dict[str, int] = {}
        for tenant in _in_turn(lines, self._tenant):
            models: deque[tuple[str, int]] = deque()
            contends = False
            for model in _in_turn(lines[tenant], self._models.get(tenant, "")):
                most = known.get(model)
                if most is None:
                    most = known[model] = places(model)
                contends = contends or most > 0
                if (room := most - running.get(model, 0)) > 0:
                    models.append((model, room))
                    if len(models) >= free:
                        break
            contenders += contends
            if models:
                turns.append((tenant, models))
        return turns, contenders


def _in_turn(names: Iterable[str], last: str) -> list[str]:
    """From the one after `last` on, and round."""
    return sorted(names, key=lambda name: (name <= last, name))
