"""What must be true of jobs, whatever was disturbed: points 1 to 7 and 12 of the audit."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise, zip_longest

from chaos.books import ALONE, Asked, Books, Call, Hold, Kind, bare, clock, each_job

LIVE = {"scheduled", "ready", "suspect", "running"}
SUSPECT_AFTER = 2
POISON_AFTER = 3
SAME_S = 1.0
"""Times that two gateways return may differ by the precision with which they know the database's clock."""
GRACE_S = 5.0


def nothing(what: str, watched: Iterable[object]) -> list[str]:
    """An audit that has nothing to look at has proven nothing."""
    return [] if any(True for _ in watched) else [f"watched nothing: no {what}"]


def one_job_for_each_key(books: Books) -> list[str]:
    """1. Each key that got a 202 has one list of job ids, all in the store, with answers to their own prompts."""
    accepted = {
        key: good
        for key, answers in books.keyed(Asked.SUBMIT).items()
        if (good := [answer for answer in answers if answer.status == 202])
    }
    by_id = {job.id: job for job in books.jobs}
    found = nothing("202 in the clients' ledger", accepted)
    for key, answers in accepted.items():
        ids = {answer.job_ids: answer for answer in answers}
        if len(ids) > 1:
            listed = ", ".join(f"{answer} → {list(jobs)}" for jobs, answer in ids.items())
            found.append(f"key {key} was accepted as different jobs: {listed}{books.before(answers[-1].at)}")
        last = answers[-1]
        for job_id, prompt in zip(last.job_ids, last.prompts, strict=True):
            job = by_id.get(job_id)
            if job is None:
                found.append(f"job {job_id} is lost: {last} promised it{books.before(last.at)}")
            elif job.text is not None and prompt not in job.text:
                found.append(f"job {job_id} (key {key}) asked {prompt!r} and has the answer {job.text!r}")
    return found


def no_job_but_those_asked_for(books: Books) -> list[str]:
    """2. Nothing that was not handed in; a list whole or not at all; each id in one table."""
    sizes = {answer.key: len(answer.prompts) for answer in books.answers if answer.asked is Asked.SUBMIT}
    found = nothing("job in the store", books.jobs)
    for job_id, rows in Counter(job.id for job in books.jobs).items():
        if rows > 1:
            found.append(f"job {job_id} has {rows} rows: it is live and finished at once")
    stored: defaultdict[str, set[str]] = defaultdict(set)
    for job in books.jobs:
        stored[job.name].add(job.id)
    for name, ids in stored.items():
        if name not in sizes:
            found.append(f"jobs {sorted(ids)} belong to {name!r}, which no client handed in")
        elif len(ids) != sizes[name]:
            found.append(f"key {name} handed in {sizes[name]} jobs, the store has {len(ids)}: {sorted(ids)}")
    return found


def nothing_is_stuck(books: Books) -> list[str]:
    """3. After healing and a lease nothing is pending or running that is not due later."""
    found = nothing("job in the store", books.jobs)
    waited = f"{books.read_at - books.healed_at:.1f} s after the last disturbance (lease {books.lease_s:g} s)"
    return found + [
        f"job {job.id} ({job.name}) is still {job.state} {waited}: {_story(books, holds)}"
        for job, holds in each_job(books)
        if job.state in LIVE and job.run_at <= books.read_at
    ]


def calls_are_accounted_for(books: Books) -> list[str]:
    """4. Of a prompt's calls all but one were lost by a disturbance; a completed job has one, a claim at most one."""
    calls = calls_by_prompt(books.calls)
    found = nothing("call in the provider's book", books.calls) + nothing("job in the store", books.jobs)
    for job, holds in each_job(books):
        made = calls.get(job.prompt, [])
        wasted = unexcused(books, made)
        if len(wasted) > 1:
            found.append(
                f"job {job.id} was called {len(made)} times, {len(wasted)} of them without a cause: {_listed(wasted)};"
                f" {_story(books, holds)}"
            )
        if job.state == "completed" and not made:
            found.append(f"job {job.id} is completed, but the provider never received {job.prompt!r}")
        if len(made) > job.lease:
            found.append(
                f"job {job.id} was claimed {job.lease} times and called {len(made)} times: {_listed(made)}"
            )
    return found


def crashes_have_causes(books: Books) -> list[str]:
    """5. A job counts no more crashes than claims whose node was killed, frozen or cut off alone."""
    found = nothing("claim that the triggers saw", books.holds)
    for job, holds in each_job(books):
        unknown = [hold.owner for hold in holds if hold.process is None]
        if unknown:
            found.append(f"job {job.id} was claimed by {unknown}, which no process is known to be")
        causes = [hold for hold in holds if _alone(books, hold)]
        if job.crashes > len(causes):
            found.append(
                f"job {job.id} counts {job.crashes} crashes, but only {len(causes)} of its claims were held by a node"
                f" that was disturbed alone: {_story(books, holds)}"
            )
        if (job.state == "suspect" and len(causes) < SUSPECT_AFTER) or (
            job.reason == "poison" and len(causes) < POISON_AFTER
        ):
            found.append(f"job {job.id} is {job.reason or job.state} without a cause: {_story(books, holds)}")
    return found


def claims_end_once(books: Books) -> list[str]:
    """6. A claim ends once: by its process, or after its node's row was gone, or a lease after a cancel."""
    found = nothing("claim that the triggers saw", books.holds)
    for hold in books.holds:
        name = f"job {hold.job}, claim {hold.lease} of {hold.process or hold.owner}"
        if len(hold.ends) > 1:
            by = ", ".join(f"by {end.by} {clock(end.at)} as {end.state}" for end in hold.ends)
            found.append(f"{name} ended {len(hold.ends)} times: {by}{books.before(hold.ends[1].at)}")
        for end in hold.ends[:1]:
            own = end.by is None or end.by == hold.process
            late = end.cancel_at is not None and end.at >= end.cancel_at + books.lease_s * 0.9
            if not own and end.owner_known and not late:
                found.append(
                    f"{name} was ended by {end.by} {clock(end.at)} while its node was alive{books.before(end.at)}"
                )
    for job, holds in each_job(books):
        leases = [hold.lease for hold in holds]
        if any(later != earlier + 1 for earlier, later in pairwise(leases)) or (leases and leases[0] != 1):
            found.append(f"the leases of job {job.id} do not rise by one: {leases}")
    return found


def ends_are_final(books: Books) -> list[str]:
    """7. Once a client has seen a job's end, all gateways return the same end, and the store has it."""
    stored = {job.id: job.state for job in books.jobs}
    first: dict[str, tuple[str, float, str]] = {}
    found: list[str] = []
    for answer in sorted(books.answers, key=lambda one: one.at):
        if answer.asked is not Asked.STATUS or answer.status != 200:
            continue
        job = answer.record
        if not job["finished_at"]:
            if answer.key in first:
                found.append(
                    f"job {answer.key} was over ({first[answer.key][2]}), then {job['state']}: {answer}"
                )
            continue
        end = (job["state"], datetime.fromisoformat(job["finished_at"]).timestamp(), str(answer))
        state, finished_at, earlier = first.setdefault(answer.key, end)
        if end[0] != state or abs(end[1] - finished_at) > SAME_S:
            said = (
                f"{state} at {clock(finished_at)} by {earlier}, then {end[0]} at {clock(end[1])} by {answer}"
            )
            found.append(f"job {answer.key} ended twice: {said}{books.before(answer.at)}")
    found += [
        f"job {job_id} was {state} for a client, and is {stored.get(job_id)} in the store: {earlier}"
        for job_id, (state, _, earlier) in first.items()
        if stored.get(job_id) != state
    ]
    return nothing("end of a job in the clients' ledger", first) + found


def the_dead_are_noticed(books: Books) -> list[str]:
    """12. A killed node's jobs run again within two leases and 5 s, and what else was disturbed meanwhile."""
    in_hand = [
        (kill, hold, job, later)
        for job, holds in each_job(books)
        for hold, later in zip_longest(holds, holds[1:])
        for kill in books.disturbances
        if kill.kind is Kind.KILL and _is_of(books, hold, kill.began) and bare(hold.process) == kill.node
    ]
    found = nothing("worker that was killed with a job in hand", in_hand)
    for kill, hold, job, later in in_hand:
        bound = kill.began + 2 * books.lease_s + GRACE_S
        others = [
            one.took_s
            for one in books.during(kill.began, bound, *ALONE, Kind.STORE, Kind.DELAY, Kind.STOP)
            if one is not kill
        ]
        bound += sum(others)
        over = hold.ended or float("inf")
        again = later.began if later is not None and job.crashes < SUSPECT_AFTER else over
        if max(over, again) > bound:
            took = "never" if again == float("inf") else f"only {again - kill.began:.1f} s later"
            found.append(
                f"job {job.id} was in the hands of {hold.process} when it was killed {clock(kill.began)}, and ran again"
                f" {took}; two leases and {GRACE_S:g} s, and {sum(others):.1f} s of other disturbances, are allowed"
            )
    return found


# ---- Words for them -----------------------------------------------------------------------------------


def calls_by_prompt(calls: Iterable[Call]) -> dict[str, list[Call]]:
    found: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[call.prompt].append(call)
    return dict(found)


def unexcused(books: Books, calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if not books.excuse(call)]


def _alone(books: Books, hold: Hold) -> bool:
    ended = float("inf") if hold.ended is None else hold.ended
    node = bare(hold.process)
    return bool(books.during(hold.began, ended, *ALONE, node=node, least_s=books.fatal_s))


def _is_of(books: Books, hold: Hold, at: float) -> bool:
    return hold.began <= at and (hold.ended is None or hold.ended > at)


def _listed(calls: Sequence[Call]) -> str:
    return ", ".join(f"no. {call.number} by {call.by} {clock(call.began)} ({call.how})" for call in calls)


def _story(books: Books, holds: Sequence[Hold]) -> str:
    """A job's claims, each with what happened to its node meanwhile."""
    if not holds:
        return "it was never claimed" + books.before(float("inf"))
    lines = []
    for hold in holds:
        ended = "still held" if hold.ended is None else f"until {clock(hold.ended)}"
        until = hold.ended or books.read_at
        met = [str(one) for one in books.during(hold.began, until, *Kind, node=bare(hold.process))]
        lines.append(
            f"claim {hold.lease} by {hold.process or hold.owner} {clock(hold.began)} {ended}"
            f" [{', '.join(met) or 'undisturbed'}]"
        )
    return "; ".join(lines)
