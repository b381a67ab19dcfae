"""The fan-out: everybody hears everything, and nobody who listens can hurt a call."""

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from headgate.core.call import Lane
from headgate.core.events import Cancelled, Event
from headgate.observe.fanout import EventFanout

EVENT = Cancelled(request_id="r-1", model="summary", lane=Lane.INTERACTIVE)


class Breaking:
    """A listener that raises what it is told to."""

    def __init__(self, error: Callable[[], BaseException]) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, event: Event) -> None:
        self.calls += 1
        raise self.error()


def test_every_listener_gets_every_event_in_the_order_they_came() -> None:
    fanout, heard = EventFanout(), list[tuple[str, Event]]()
    fanout.listen(lambda event: heard.append(("first", event)))
    fanout.listen(lambda event: heard.append(("second", event)))

    fanout(EVENT)

    assert heard == [("first", EVENT), ("second", EVENT)]


def test_unlistening_takes_away_one_registration_and_only_once() -> None:
    fanout, heard = EventFanout(), list[Event]()
    unlisten = fanout.listen(heard.append)
    fanout.listen(heard.append)

    unlisten()
    unlisten()
    fanout(EVENT)

    assert heard == [EVENT]


def test_a_listener_may_leave_while_it_listens() -> None:
    """A screen that waits for one event goes away in the middle of a round; its neighbours still hear."""
    fanout, heard = EventFanout(), list[Event]()
    leave: list[Callable[[], None]] = []
    leave.append(fanout.listen(lambda _event: leave[0]()))
    fanout.listen(heard.append)

    fanout(EVENT)
    fanout(EVENT)

    assert heard == [EVENT, EVENT]


def test_a_raising_listener_hurts_nobody_and_stays() -> None:
    fanout, heard, breaking = EventFanout(), list[Event](), Breaking(lambda: RuntimeError("no"))
    fanout.listen(breaking)
    fanout.listen(heard.append)

    fanout(EVENT)
    fanout(EVENT)

    assert heard == [EVENT, EVENT]
    assert breaking.calls == 2


def test_a_cancelled_future_in_a_listener_does_not_look_like_a_cancelled_caller() -> None:
    """CancelledError is no Exception: let through, it would end the call as if its caller had gone."""
    fanout = EventFanout()
    fanout.listen(Breaking(asyncio.CancelledError))

    fanout(EVENT)


def test_an_interrupt_is_for_the_program_not_for_the_listener() -> None:
    fanout = EventFanout()
    fanout.listen(Breaking(KeyboardInterrupt))

    with pytest.raises(KeyboardInterrupt):
        fanout(EVENT)


def test_errors_are_logged_once_per_listener_and_type(caplog: pytest.LogCaptureFixture) -> None:
    """A listener broken for a day must not fill the disk with the news of it."""
    errors: list[BaseException] = [ValueError("a"), ValueError("b"), KeyError("c"), ValueError("d")]
    fanout = EventFanout()
    fanout.listen(Breaking(iter(errors).__next__))
    fanout.listen(Breaking(lambda: ValueError("e")))

    with caplog.at_level(logging.ERROR, logger="headgate"):
        for _ in errors:
            fanout(EVENT)

    told = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert told == [ValueError, ValueError, KeyError]
    assert {record.name for record in caplog.records} == {"headgate"}


def test_a_slow_listener_in_one_thread_does_not_stop_others_from_joining() -> None:
    """Nothing is locked while a listener runs; else a stuck one would freeze whoever comes next."""
    fanout, heard = EventFanout(), list[Event]()
    inside, go_on = threading.Event(), threading.Event()

    def slow(_event: Event) -> None:
        inside.set()
        go_on.wait(60)

    leave = fanout.listen(slow)
    thread = threading.Thread(target=fanout, args=(EVENT,))
    thread.start()
    assert inside.wait(60)
    leave()
    fanout.listen(heard.append)
    fanout(EVENT)
    go_on.set()
    thread.join()

    assert heard == [EVENT]
