"""The real clock, under the name by which the rooms above know it."""

from headgate.machine.clock import TIMER_SLACK_S, SystemClock

__all__ = ["TIMER_SLACK_S", "SystemClock"]
