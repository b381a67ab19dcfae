"""What must be true of the processes and of what they answer: points 11 and 13 of the audit."""

from collections.abc import Iterator

from chaos.books import ALONE, Answer, Books, Kind, Sample, bare, clock
from chaos.job_points import nothing

STATUSES = {200, 202, 409, 429, 502, 503, 504}
LATE_S = 20.0
"""How much longer than it asked for a request may take."""
IDLE_S = 4.0
"""The server ends a transaction of ours that says nothing for 3 s."""
CONNECTIONS = 7
TRACEBACK = "Traceback (most recent call last)"
NOT_NOW = 4
"""The exit code of a command that cannot reach its store."""


def nodes_keep_their_leases(books: Books) -> list[str]:
    """11. A living node that reaches the store renews within each lease and is not declared dead; connections stay few."""
    found = nothing("row of a node in the samples", (node for one in books.samples for node in one.nodes))
    changed: dict[str, tuple[str, float]] = {}
    reported: set[str] = set()
    previous: Sample | None = None
    for sample in books.samples:
        for node, row in sample.nodes.items():
            seen, at = changed.get(node, ("", sample.at))
            if seen != row:
                changed[node] = (row, sample.at)
            elif sample.at - at > books.lease_s + 1 and _is_well(books, node, at, sample.at):
                if node not in reported:
                    found.append(
                        f"{books.owners[node]} ({node}) has not renewed since {clock(at)}, seen {clock(sample.at)}"
                        f"{books.before(sample.at)}"
                    )
                reported.add(node)
        for node in set(previous.nodes if previous else ()) - set(sample.nodes):
            since = sample.at - 3 * books.lease_s
            if _is_well(books, node, since, sample.at):
                found.append(
                    f"{books.owners[node]} ({node}) was declared dead by {clock(sample.at)} while it lived"
                    f"{books.before(sample.at)}"
                )
        found += _too_many(books, sample)
        previous = sample
    return found


def _is_well(books: Books, node: str, since: float, at: float) -> bool:
    """Its process is known, was to run, and nothing kept it from the store."""
    process = books.owners.get(node)
    if process is None:
        return False
    began, ended = books.lives.get(process, (0.0, float("inf")))
    trouble = books.during(
        since, at, *ALONE, Kind.STORE, Kind.DELAY, node=bare(process), least_s=books.fatal_s
    )
    return at < ended and began <= at and not trouble


def _too_many(books: Books, sample: Sample) -> Iterator[str]:
    for process, count in sample.connections.items():
        met = books.during(
            sample.at - GONE_S, sample.at, *ALONE, Kind.STORE, Kind.CUT, Kind.STOP, node=bare(process)
        )
        if count > CONNECTIONS and not met:
            yield f"{process} has {count} connections {clock(sample.at)}, {CONNECTIONS} are allowed"
    for process, idle_s in sample.idle:
        if idle_s > IDLE_S and not books.during(sample.at - idle_s, sample.at, Kind.STORE, Kind.STARVED):
            yield f"{process} left a transaction open for {idle_s:.1f} s {clock(sample.at)}{books.before(sample.at)}"


GONE_S = 5.0
"""How long after a disturbance the server may still count connections that are gone."""


def answers_are_well_formed(books: Books) -> list[str]:
    """13. Known statuses in time, with Retry-After where it is due; no traceback; no process that ends by itself."""
    found = nothing("answer in the clients' ledger", books.answers) + nothing("log of a process", books.logs)
    for answer in books.answers:
        found += _flaws(books, answer)
    for process, log in books.logs.items():
        at = log.find(TRACEBACK)
        if at >= 0:
            found.append(f"{process} has a traceback in its log:\n{log[max(0, at - 300) : at + 2500]}")
    for one in books.exits:
        away = books.during(
            one.at - LATE_S, one.at, Kind.STORE, *ALONE, Kind.CUT, Kind.DELAY, node=bare(one.node)
        )
        if one.code != NOT_NOW or not away:
            found.append(
                f"{one.node} ended by itself {clock(one.at)} with code {one.code}{books.before(one.at)}"
            )
    return found


def _flaws(books: Books, answer: Answer) -> Iterator[str]:
    gateway = bare(answer.gateway)
    said = answer.body[:300].decode(errors="replace")
    if answer.status is None or not answer.whole:
        gone = books.during(answer.sent_at - 1, answer.at, Kind.KILL, Kind.STOP, node=gateway)
        if not answer.left and not gone:
            yield f"{answer}: the connection ended early, and {gateway} was not stopped{books.before(answer.at)}"
    elif answer.status not in STATUSES:
        yield f"{answer}: status {answer.status} is not one that may be answered: {said}{books.before(answer.at)}"
    if answer.status in {429, 503} and "retry-after" not in answer.headers:
        yield f"{answer}: {answer.status} without Retry-After: {said}"
    stood = books.during(answer.sent_at, answer.at, Kind.FREEZE, Kind.STARVED, node=gateway)
    allowed = answer.may_take_s + LATE_S + sum(one.took_s for one in stood)
    if answer.at - answer.sent_at > allowed:
        yield f"{answer}: longer than {allowed:.1f} s{books.before(answer.at)}"
