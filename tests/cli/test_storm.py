"""The demo's verdict must be able to fail."""

from headgate.cli.storm import Books, judge
from headgate.core.events import Cancelled
from headgate.core.messages import Lane


def _books(*request_ids: str, planned: int, answered: int) -> Books:
    books = Books(planned, asked=planned)
    books.ends["answered"] = answered
    for request_id in request_ids:
        books.hear(Cancelled(request_id=request_id, model="storm", lane=Lane.INTERACTIVE))
    return books


def test_books_that_balance_hold() -> None:
    assert judge(_books("a", "b", planned=2, answered=2)).holds


def test_a_lost_call_fails_the_verdict() -> None:
    assert judge(_books("a", "b", planned=2, answered=1)).lost == 1
    assert judge(_books("a", planned=2, answered=2)).lost == 1


def test_a_call_told_twice_fails_the_verdict() -> None:
    verdict = judge(_books("a", "b", "b", planned=2, answered=2))
    assert verdict.doubled == 1
    assert not verdict.holds


def test_an_answer_with_the_wrong_asker_fails_the_verdict() -> None:
    books = _books("a", planned=1, answered=1)
    books.wrong_answers = 1
    assert not judge(books).holds
