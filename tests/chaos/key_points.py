"""What must be true of direct calls under an idempotency key: points 8 to 10 of the audit."""

from collections.abc import Iterable

from chaos.books import ALONE, STORED_S, Answer, Asked, Books, Call, Kind
from chaos.job_points import calls_by_prompt, nothing

DONE = b"[DONE]"


def complete(answer: Answer) -> bool:
    """The client has an answer, to its end."""
    if answer.status != 200 or not answer.whole:
        return False
    return answer.asked is not Asked.STREAM or DONE in answer.body


def one_answer_for_each_key(books: Books) -> list[str]:
    """8. All complete answers under a key are one, the recorded one; only lost calls were made again."""
    recorded = {key.key: key.text for key in books.keys}
    calls = calls_by_prompt(books.calls)
    keyed = books.keyed(Asked.CALL, Asked.STREAM)
    found = nothing(
        "answer under a key", (one for answers in keyed.values() for one in answers if complete(one))
    )
    for key, answers in keyed.items():
        texts: dict[str, Answer] = {}
        for answer in _kept(books, answers):
            texts.setdefault(answer.text, answer)
        if len(texts) > 1:
            listed = ", ".join(f"{text!r} by {answer}" for text, answer in texts.items())
            found.append(f"key {key} has {len(texts)} answers: {listed}{_last(books, answers)}")
        for text, answer in texts.items():
            if recorded.get(key) != text:
                kept = f"the recorded one is {recorded[key]!r}" if key in recorded else "none is recorded"
                found.append(f"key {key} was answered {text!r} by {answer}, {kept}{_last(books, answers)}")
        made = calls.get(answers[0].prompts[0], [])
        wasted = [call for call in made if not _lost(books, call, answers)]
        if len(wasted) > 1:
            listed = ", ".join(f"no. {call.number} by {call.by} ({call.how})" for call in wasted)
            found.append(
                f"key {key} was called {len(made)} times, {len(wasted)} of them without a cause: {listed}"
                f"{_last(books, answers)}"
            )
    return found


def no_key_is_stuck(books: Books) -> list[str]:
    """9. After healing and a lease each key is answered at every gateway, and no row is reserved or sent."""
    keyed = books.keyed(Asked.CALL, Asked.STREAM)
    gateways = {answer.gateway for answer in books.answers}
    late = {key: [one for one in answers if one.sent_at >= books.healed_at] for key, answers in keyed.items()}
    found = nothing("key that was asked for after healing", (key for key, answers in late.items() if answers))
    for key, answers in late.items():
        for gateway in sorted(gateways - {one.gateway for one in answers if complete(one)}):
            last = [
                f"{one} {one.body[:200].decode(errors='replace')}"
                for one in answers
                if one.gateway == gateway
            ]
            said = last[-1] if last else "it was not asked"
            found.append(f"key {key} is stuck at {gateway}: {said}{_last(books, keyed[key])}")
    return found + [
        f"key {row.key} is still {row.state} by {row.owner} ({books.owners.get(row.owner or '', 'unknown')})"
        f" {books.read_at - books.healed_at:.1f} s after the last disturbance{_last(books, keyed.get(row.key, ()))}"
        for row in books.keys
        if row.state in {"reserved", "sent"}
    ]


def streams_are_honest(books: Books) -> list[str]:
    """10. `[DONE]` only after the recorded text; otherwise an error event. One caller alone paid for an answer."""
    recorded = {key.key: key.text for key in books.keys}
    streams = books.keyed(Asked.STREAM)
    found = nothing(
        "stream under a key", (one for answers in streams.values() for one in answers if one.status == 200)
    )
    for key, answers in streams.items():
        for answer in answers:
            if answer.status != 200:
                continue
            if answer in _kept(books, [answer]) and answer.text != recorded.get(key):
                found.append(
                    f"key {key}: {answer} ended with [DONE] after {answer.text!r}, recorded is {recorded.get(key)!r}"
                    f"{books.before(answer.at)}"
                )
            if answer.whole and DONE not in answer.body and b"event: error" not in answer.body:
                found.append(f"key {key}: {answer} ended without [DONE] and without an error event")
        first = [one for one in _kept(books, answers) if not one.replayed]
        if len({one.gateway for one in first}) > 1:
            listed = ", ".join(f"{one.text!r} by {one}" for one in first)
            found.append(f"key {key} was streamed as new by several: {listed}{_last(books, answers)}")
    for key, answers in books.keyed(Asked.CALL).items():
        kept = _kept(books, answers)
        first_calls = [one for one in kept if not one.replayed]
        if len(first_calls) > 1:
            listed = ", ".join(map(str, first_calls))
            found.append(
                f"key {key} was answered {len(first_calls)} times as new: {listed}{_last(books, answers)}"
            )
        if kept and not first_calls and len(kept) == len(answers):
            found.append(
                f"key {key}: all {len(kept)} answers carry Idempotent-Replayed, and no caller paid for them"
            )
    return found


def _kept(books: Books, answers: Iterable[Answer]) -> list[Answer]:
    """Complete answers, without those that a node returned while the store was away, and could not store later.

    A node may return an answer while its own lease runs. It is lost only if the node is killed, or held off for
    so long that it is thought dead, before the store has it.
    """
    return [one for one in answers if complete(one) and not _may_be_lost(books, one)]


def _may_be_lost(books: Books, answer: Answer) -> bool:
    least_s = books.fatal_s
    return any(
        books.during(
            answer.at,
            (away.ended or float("inf")) + least_s + STORED_S,
            *ALONE,
            node=answer.gateway,
            least_s=least_s,
        )
        for away in books.during(
            answer.at - 1, answer.at, Kind.STORE, Kind.SILENCE, Kind.REFUSAL, node=answer.gateway
        )
    )


def _lost(books: Books, call: Call, answers: Iterable[Answer]) -> bool:
    """Its outcome was lost: by a disturbance, because its clients left, or in an outage longer than the node's lease."""
    ended = float("inf") if call.ended is None else call.ended
    left = any(
        (one.left or one.status == 504) and one.gateway == call.by and call.began - 1 <= one.at <= ended + 1
        for one in answers
    )
    least_s = books.lease_s * 2 / 3
    away = books.during(call.began, ended + books.lease_s, Kind.STORE, least_s=least_s)
    return left or bool(away) or books.excuse(call)


def _last(books: Books, answers: Iterable[Answer]) -> str:
    return books.before(max((one.at for one in answers), default=float("inf")))
