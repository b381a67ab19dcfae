"""Deadlines of calls: one timer for all of them, because next to none of thousands is ever missed.

Behaves as `asyncio.timeout_at` does, at a quarter of its cost: the task is cancelled when its time is up, and a
cancellation from elsewhere stays one.
"""

import asyncio
import math

import msgspec

from headgate.machine.clock import TIMER_SLACK_S


class Deadline(msgspec.Struct, eq=False):
    """One call's. `leave` it however the call ends; `missed` says whether its cancellation was ours."""

    at: float
    waiting: "dict[Deadline, None]"
    task: "asyncio.Task[object]"
    cancels: int
    """How often the task was cancelled before."""
    rung: bool = False

    def ring(self) -> None:
        self.rung = True
        self.task.cancel()

    def missed(self) -> bool:
        """To be asked once, when the call was cancelled. False when somebody else wants it cancelled too."""
        rung, self.rung = self.rung, False
        return rung and self.task.uncancel() <= self.cancels

    def leave(self) -> None:
        # The timer stays: it rings in vain once, which is cheaper than to set it for every call.
        self.waiting.pop(self, None)
        if self.rung:
            # It rang, and the call ended with another error: no other code is to see the cancellation.
            self.rung = False
            self.task.uncancel()


class Alarm(msgspec.Struct, eq=False):
    """A bound of time on a part of what the running task does, at a fraction of what `asyncio.timeout` costs.

    `off` it in any case; `missed` says whether a cancellation was its.
    """

    task: "asyncio.Task[object]"
    cancels: int
    timer: asyncio.TimerHandle | None = None
    rung: bool = False

    def ring(self) -> None:
        self.rung = True
        self.task.cancel()

    def missed(self) -> bool:
        """To be asked once, when the task was cancelled. False when other code wants it cancelled too."""
        rung, self.rung = self.rung, False
        return rung and self.task.uncancel() <= self.cancels

    def off(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.rung:
            self.rung = False
            self.task.uncancel()


def alarm_at(at: float) -> Alarm:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call must be made inside a task")
    alarm = Alarm(task, task.cancelling())
    alarm.timer = asyncio.get_running_loop().call_at(at, alarm.ring)
    return alarm


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
        deadline = Deadline(at, self._waiting, task, task.cancelling())
        self._waiting[deadline] = None
        if at < self._rings_at:
            self._set(at)
        return deadline

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
