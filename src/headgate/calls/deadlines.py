"""Deadlines of calls: one timer for all of them, because next to none of thousands is ever missed.

Behaves as `asyncio.timeout_at` does, at a quarter of its cost: the task is cancelled when its time is up, and a
cancellation from elsewhere stays one.
"""

import asyncio
import math

from headgate.machine.clock import TIMER_SLACK_S


class Deadline:
    """One call's. `leave` it however the call ends; `missed` says whether its cancellation was ours."""

    __slots__ = ("_cancels", "_deadlines", "_rung", "_task", "at")

    def __init__(self, deadlines: "Deadlines", at: float, task: "asyncio.Task[object]") -> None:
        self.at = at
        self._deadlines = deadlines
        self._task = task
        self._cancels = task.cancelling()
        self._rung = False

    def ring(self) -> None:
        self._rung = True
        self._task.cancel()

    def missed(self) -> bool:
        """To be asked once, when the call was cancelled. False when somebody else wants it cancelled too."""
        rung, self._rung = self._rung, False
        return rung and self._task.uncancel() <= self._cancels

    def leave(self) -> None:
        self._deadlines.forget(self)
        if self._rung:
            # It rang, and somebody inside made another error of it: nobody else is to hear of it.
            self._rung = False
            self._task.uncancel()


class Deadlines:
    """Those of all calls on one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[Deadline, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf

    def enter(self, at: float) -> Deadline:
        """From now until `leave`, the running task has this long."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a call must be made inside a task")
        deadline = Deadline(self, at, task)
        self._waiting[deadline] = None
        if at < self._rings_at:
            self._set(at)
        return deadline

    def forget(self, deadline: Deadline) -> None:
        # The timer stays: it rings for nobody once, which is cheaper than to set it for every call.
        self._waiting.pop(deadline, None)

    def _set(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = at
        self._timer = asyncio.get_running_loop().call_at(at, self._ring)

    def _ring(self) -> None:
        """Whoever left since the timer was set is no longer here: often there is nobody to tell."""
        self._timer, self._rings_at = None, math.inf
        now = asyncio.get_running_loop().time() + TIMER_SLACK_S
        for deadline in [one for one in self._waiting if one.at <= now]:
            del self._waiting[deadline]
            deadline.ring()
        if self._waiting:
            self._set(min(one.at for one in self._waiting))
