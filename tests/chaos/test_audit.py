"""The audit can fail: each fault that is planted into sound books is found, by the point that it belongs to, and by no other."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from chaos.audit import POINTS, check, figures, violations
from chaos.books import (
    Answer,
    Asked,
    Books,
    Call,
    Change,
    Disturbance,
    Exit,
    Kind,
    Sample,
    StoredJob,
    StoredKey,
)

LEASE_S = 3.0
GATEWAYS = ("g1", "g2")
RETRY = {"retry-after": "1"}
REPLAYED = {"idempotent-replayed": "true"}


def completion(text: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": text}}]}).encode()


def stream(text: str, end: bytes = b"data: [DONE]\n\n") -> bytes:
    delta = {"choices": [{"delta": {"content": text}}]}
    return b"data: " + json.dumps(delta).encode() + b"\n\n" + end


def accepted(*ids: str) -> bytes:
    return json.dumps({"data": [{"id": one} for one in ids]}).encode()


def record(state: str, finished_at: str | None) -> bytes:
    return json.dumps({"state": state, "finished_at": finished_at}).encode()


def answer(
    asked: Asked, key: str, body: bytes, *, gateway: str = "g1", at: float = 101.0, **more: object
) -> Answer:
    prompts = {"list": ("list 0", "list 1")}.get(key, (key,))
    made = Answer(asked, gateway, key, at - 0.5, at, 200, {}, body, prompts=prompts)
    return replace(made, **more)  # type: ignore[arg-type]


def change(
    at: float, job: str, old: str, new: str, leases: tuple[int, int], by: str, **more: object
) -> Change:
    owners = (None, f"node {by}") if new == "running" else (f"node {by}", None)
    made = Change(*(at, job, old, new, *leases, *owners, True, None, by))
    return replace(made, **more)  # type: ignore[arg-type]


def job(job_id: str, name: str, prompt: str, number: int, **more: object) -> StoredJob:
    made = StoredJob(
        job_id, "completed", 0, 1, 100.0, None, name, prompt, f"answer no. {number} to <{prompt}>"
    )
    return replace(made, **more)  # type: ignore[arg-type]


def sound() -> Books:
    """A list of two jobs, one of which survived the death of its worker; one call and one stream under keys."""
    books = Books(lease_s=LEASE_S, began=100.0, healed_at=120.0, read_at=130.0)
    books.lives = {"w1#1": (99.0, 105.0), "w1#2": (105.5, 999.0), "g1#1": (99.0, 999.0)}
    books.disturbances = [
        Disturbance(Kind.KILL, "w1", 105.0, 105.5),
        Disturbance(Kind.CUT, "g1", 102.0, 102.0),
    ]
    books.calls = [
        Call("list 0", 1, "w1", 101.0, 102.0, "whole"),
        Call("list 1", 2, "w1", 104.0, 105.0, "left"),
        Call("list 1", 3, "w2", 110.0, 110.5, "whole"),
        Call("call", 4, "g1", 101.0, 101.2, "whole"),
        Call("stream", 5, "g2", 101.0, 101.2, "whole"),
    ]
    books.jobs = [job("j0", "list", "list 0", 1), job("j1", "list", "list 1", 3, crashes=1, lease=2)]
    books.keys = [
        StoredKey("call", "done", None, None, "answer no. 4 to <call>"),
        StoredKey("stream", "done", None, None, "answer no. 5 to <stream>"),
        StoredKey("list", "done", None, "j0", None),
    ]
    books.changes = [
        change(100.9, "j0", "ready", "running", (0, 1), "w1#1"),
        change(102.1, "j0", "running", "gone", (1, 1), "w1#1"),
        change(103.9, "j1", "ready", "running", (0, 1), "w1#1"),
        change(109.0, "j1", "running", "ready", (1, 1), "w2#1", owner_known=False),
        change(109.9, "j1", "ready", "running", (1, 2), "w2#1"),
        change(110.6, "j1", "running", "gone", (2, 2), "w2#1"),
    ]
    owners = {"node g1": "g1#1", "node w1": "w1#1"}
    books.samples = [
        Sample(100.0 + n / 5, {"node g1": f"beat {n // 5}"}, owners, {"g1#1": 7}, [("g1#1", 0.1)])
        for n in range(150)
    ]
    books.answers = [
        answer(Asked.SUBMIT, "list", accepted("j0", "j1"), status=202, gateway=gateway)
        for gateway in GATEWAYS
    ]
    for at, replays in ((101.0, {}), (125.0, REPLAYED)):
        for gateway in GATEWAYS:
            first = at == 101.0
            if not first or gateway == "g1":
                body = completion("answer no. 4 to <call>")
                books.answers.append(
                    answer(Asked.CALL, "call", body, gateway=gateway, at=at, headers=replays)
                )
            if not first or gateway == "g2":
                body = stream("answer no. 5 to <stream>")
                books.answers.append(
                    answer(Asked.STREAM, "stream", body, gateway=gateway, at=at, headers=replays)
                )
            end = record("completed", "1970-01-01T00:01:50.6+00:00") if not first else record("running", None)
            books.answers.append(answer(Asked.STATUS, "j1", end, gateway=gateway, at=at + 5))
    books.logs = {"g1#1": "all is well"}
    return books


def _second_job(books: Books) -> None:
    books.answers.append(answer(Asked.SUBMIT, "list", accepted("j0", "j2"), status=202))
    books.jobs.append(job("j2", "other", "list 1", 3, lease=2))
    # Point 2 has its own faults; here the store knows of a client that asked for it.
    books.answers.append(answer(Asked.SUBMIT, "other", b"", status=503, headers=RETRY))


def _lost_job(books: Books) -> None:
    books.answers.append(answer(Asked.SUBMIT, "gone", accepted("j9"), status=202))


def _wrong_answer(books: Books) -> None:
    books.jobs[0] = replace(books.jobs[0], text="answer no. 1 to <list 1>")


def _uninvited_job(books: Books) -> None:
    books.jobs.append(job("j3", "uninvited", "uninvited", 6))
    books.calls.append(Call("uninvited", 6, "w2", 112.0, 112.1, "whole"))


def _half_a_list(books: Books) -> None:
    books.answers.append(
        answer(Asked.SUBMIT, "half", b"", status=503, headers=RETRY, prompts=("half 0", "half 1"))
    )
    books.jobs.append(job("j4", "half", "half 0", 6))
    books.calls.append(Call("half 0", 6, "w2", 112.0, 112.1, "whole"))


def _in_two_tables(books: Books) -> None:
    books.jobs.append(books.jobs[0])


def _stuck_job(books: Books) -> None:
    books.jobs[0] = replace(books.jobs[0], state="ready", text=None)


def _repeated_call(books: Books) -> None:
    books.jobs[0] = replace(books.jobs[0], lease=2)
    books.calls.append(Call("list 0", 6, "w2", 111.0, 111.5, "whole"))


def _call_without_a_claim(books: Books) -> None:
    books.calls.append(Call("list 1", 6, "w1", 104.9, 105.0, "left"))


def _never_called(books: Books) -> None:
    del books.calls[0]


def _crash_without_a_cause(books: Books) -> None:
    books.jobs[0] = replace(books.jobs[0], crashes=1)


def _crash_by_an_outage(books: Books) -> None:
    books.jobs[0] = replace(books.jobs[0], crashes=1)
    books.disturbances.append(Disturbance(Kind.STORE, None, 101.0, 109.0))


def _poison_without_a_cause(books: Books) -> None:
    books.jobs[0] = replace(books.jobs[0], state="dead_letter", reason="poison", text=None)


def _stale_write(books: Books) -> None:
    books.changes.insert(4, change(109.1, "j1", "running", "gone", (1, 1), "w1#1"))


def _theft(books: Books) -> None:
    books.changes[1] = change(102.1, "j0", "running", "ready", (1, 1), "w2#1")


def _leap_of_a_lease(books: Books) -> None:
    books.changes[4] = change(109.9, "j1", "ready", "running", (1, 3), "w2#1")
    books.changes[5] = change(110.6, "j1", "running", "gone", (3, 3), "w2#1")


def _end_that_changes(books: Books) -> None:
    books.answers.append(
        answer(Asked.STATUS, "j1", record("completed", "1970-01-01T00:01:57+00:00"), at=131.0)
    )


def _end_that_is_undone(books: Books) -> None:
    books.answers.append(answer(Asked.STATUS, "j1", record("running", None), at=131.0))


def _second_answer(books: Books) -> None:
    body = completion("answer no. 6 to <call>")
    books.answers.append(answer(Asked.CALL, "call", body, gateway="g2", at=126.0, headers=REPLAYED))


def _call_again(books: Books) -> None:
    books.calls.append(Call("call", 6, "g2", 111.0, 111.2, "whole"))


def _stuck_key(books: Books) -> None:
    books.answers = [
        replace(one, status=409, body=b"in progress")
        if one.asked is Asked.CALL and one.gateway == "g2"
        else one
        for one in books.answers
    ]


def _reserved_row(books: Books) -> None:
    books.keys.append(StoredKey("another", "reserved", "node g1", None, None))


def _stream_without_end(books: Books) -> None:
    books.answers.append(answer(Asked.STREAM, "stream", stream("answer", b""), at=126.0, headers=REPLAYED))


def _two_paid(books: Books) -> None:
    body = completion("answer no. 4 to <call>")
    books.answers.append(answer(Asked.CALL, "call", body, gateway="g2", at=126.0))


def _none_paid(books: Books) -> None:
    books.answers = [
        replace(one, headers=REPLAYED) if one.asked is Asked.CALL else one for one in books.answers
    ]


def _no_renewal(books: Books) -> None:
    books.samples = [replace(one, nodes={"node g1": "beat 1"}) for one in books.samples]


def _declared_dead(books: Books) -> None:
    books.samples[100:] = [replace(one, nodes={"another": "beat 1"}) for one in books.samples[100:]]


def _idle_transaction(books: Books) -> None:
    books.samples[50] = replace(books.samples[50], idle=[("g1#1", 9.0)])


def _many_connections(books: Books) -> None:
    books.samples[50] = replace(books.samples[50], connections={"g1#1": 9})


def _late_rescue(books: Books) -> None:
    books.changes[3:] = [replace(one, at=one.at + 9) for one in books.changes[3:]]
    books.calls[2] = Call("list 1", 3, "w2", 119.0, 119.5, "whole")
    books.answers = [one for one in books.answers if one.asked is not Asked.STATUS or one.at > 120]


def _internal_error(books: Books) -> None:
    books.answers.append(answer(Asked.OPEN_CALL, "open", b"internal", status=500))


def _no_retry_after(books: Books) -> None:
    books.answers.append(answer(Asked.OPEN_CALL, "open", b"", status=503))


def _slow_answer(books: Books) -> None:
    books.answers.append(answer(Asked.OPEN_CALL, "open", b"", sent_at=60.0))


def _connection_dropped(books: Books) -> None:
    books.answers.append(answer(Asked.OPEN_CALL, "open", b"", status=None, whole=False))


def _traceback(books: Books) -> None:
    books.logs["g1#1"] = "Traceback (most recent call last):\n  …\nKeyError: 'due'"


def _early_exit(books: Books) -> None:
    books.exits.append(Exit("g1", 111.0, 1))


FAULTS: dict[int, tuple[Callable[[Books], None], ...]] = {
    1: (_second_job, _lost_job, _wrong_answer),
    2: (_uninvited_job, _half_a_list, _in_two_tables),
    3: (_stuck_job,),
    4: (_repeated_call, _call_without_a_claim, _never_called),
    5: (_crash_without_a_cause, _crash_by_an_outage, _poison_without_a_cause),
    6: (_stale_write, _theft, _leap_of_a_lease),
    7: (_end_that_changes, _end_that_is_undone),
    8: (_second_answer, _call_again),
    9: (_stuck_key, _reserved_row),
    10: (_stream_without_end, _two_paid, _none_paid),
    11: (_no_renewal, _declared_dead, _idle_transaction, _many_connections),
    12: (_late_rescue,),
    13: (_internal_error, _no_retry_after, _slow_answer, _connection_dropped, _traceback, _early_exit),
}
PLANTED = [(number, plant) for number, plants in FAULTS.items() for plant in plants]


def test_sound_books_pass() -> None:
    assert violations(sound()) == {}
    check(sound(), POINTS, seed=0)
    assert "2 accepted, 2 completed" in figures(sound())


@pytest.mark.parametrize(("number", "plant"), PLANTED, ids=[f"{n}{plant.__name__}" for n, plant in PLANTED])
def test_a_planted_fault_is_found_by_its_point_alone(number: int, plant: Callable[[Books], None]) -> None:
    books = sound()
    plant(books)
    assert list(violations(books)) == [number], violations(books)
    with pytest.raises(AssertionError, match=f"Point {number}"):
        check(books, POINTS, seed=0)


def test_done_after_another_text_is_found_by_two_points() -> None:
    books = sound()
    books.answers.append(
        answer(Asked.STREAM, "stream", stream("answer no. 6 to <stream>"), at=126.0, headers=REPLAYED)
    )
    assert list(violations(books)) == [8, 10]


def test_every_point_has_a_planted_fault() -> None:
    assert FAULTS.keys() == POINTS.keys()


@pytest.mark.parametrize("number", POINTS)
def test_a_point_that_has_nothing_to_look_at_fails(number: int) -> None:
    """Checks that watch an empty list prove nothing."""
    assert any("watched nothing" in one for one in violations(Books(lease_s=LEASE_S), [number])[number])


@pytest.mark.parametrize("number", POINTS)
def test_with_one_point_switched_off_its_faults_pass(number: int) -> None:
    """So it is this point that finds them."""
    for plant in FAULTS[number]:
        books = sound()
        plant(books)
        check(books, POINTS.keys() - {number}, seed=0)
