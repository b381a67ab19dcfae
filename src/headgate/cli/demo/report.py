"""The verdict in words."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from headgate.cli.demo.books import Books, End, Kind
from headgate.cli.demo.verdict import Verdict, percentile
from headgate.cli.words import count_of
from headgate.core.job import Reason

MOST_FINDINGS: Final = 10
_WHY: Final = {
    Reason.POISON: "killed each worker that ran it",
    Reason.PERMANENT: "the upstream calls it wrong",
    Reason.EXHAUSTED: "its attempts are used up",
    Reason.EXPIRED: "its time was up",
}


def figures(books: Books, verdict: Verdict) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column()
    for name, figure, words in _rows(books, verdict):
        table.add_row(name, figure, words)
    return table


def _rows(books: Books, verdict: Verdict) -> Iterator[tuple[str, str, str]]:
    kinds = ", ".join(f"{count} {kind}" for kind, count in verdict.accepted.items())
    yield "accepted", str(sum(verdict.accepted.values())), kinds
    yield "completed", str(verdict.completed), _failures(verdict)
    yield "dead letters", str(sum(verdict.dead.values())), _dead(verdict)
    if books.mended is not None:
        yield "replayed", "1", "a dead letter, after its input was mended"
    crashed = sum(item.crashes > 0 for item in books.items.values())
    yield "worker deaths", str(books.worker_deaths), f"{count_of(crashed, 'job')} had begun and began again"
    yield "duplicates", *_duplicates(books)
    yield "refusals", str(len(books.waits_s)), _promises(books)
    p99_s, median_s = (percentile(books.latencies_s, share) for share in (0.99, 0.5))
    yield "interactive", f"{p99_s:.2f} s", f"p99 from request to last byte; median {median_s:.2f} s"
    words = f"{verdict.attempts} calls at the providers for {verdict.asked} questions"
    yield "amplification", f"{verdict.amplification:.2f}", words
    yield "lost", str(len(verdict.lost)), "accepted, and never ended"
    yield "doubled", str(len(verdict.doubled)), "by the providers' own count, question by question"


def _failures(verdict: Verdict) -> str:
    told = f"{verdict.failed} calls failed and were told why" if verdict.failed else ""
    left = f"{verdict.refused} gave up after refusals" if verdict.refused else ""
    return "; ".join(filter(None, (told, left))) or "no call failed for its caller"


def _dead(verdict: Verdict) -> str:
    return ", ".join(
        f"{reason}: {_WHY[Reason(reason)]}" if reason in _WHY else reason for reason in verdict.dead
    )


def _duplicates(books: Books) -> tuple[str, str]:
    """Requests beyond the first of each key."""
    twins = [*books.of(Kind.TWIN), *(item for item in books.of(Kind.JOB) if item.requests > 1)]
    sent = sum(item.requests - item.refusals for item in twins)
    return str(sent - len(twins)), f"repeated {len(twins)} keys, at once or later: told the same"


def _promises(books: Books) -> str:
    if not books.waits_s:
        return "nobody was turned away"
    back = sum(bool(item.refusals) and End.ANSWERED in item.ends for item in books.items.values())
    waits = f"{min(books.waits_s):g}–{max(books.waits_s):g} s"
    return f"told to wait {waits}; {back} callers did, and were answered"


def what_to_look_at(url: str) -> str:
    return (
        f"\nThe gateway stays open until Ctrl-C: {url}/\n"
        "  a call comes every second; the dead letter waits for somebody\n"
        f"  headgate dead list --url {url}\n"
        f"  headgate jobs list --url {url}\n"
        f"  headgate requests list --url {url}\n"
        f"  curl {url}/queue/status"
    )


def sentence(verdict: Verdict) -> Text:
    if verdict.holds:
        return Text("PASS", style="bold green").append(
            "  nothing lost, nothing done twice, every promise kept", style="not bold default"
        )
    counts = (
        f"  {len(verdict.lost)} lost, {len(verdict.doubled)} doubled, {len(verdict.broken)} promises broken"
    )
    return Text("FAIL", style="bold red").append(counts, style="not bold default")


def findings(verdict: Verdict) -> Sequence[str]:
    found = [
        f"{what}: {word}"
        for what, words in (("lost", verdict.lost), ("doubled", verdict.doubled), ("broken", verdict.broken))
        for word in words
    ]
    more = len(found) - MOST_FINDINGS
    return [*found[:MOST_FINDINGS], *([f"and {more} more"] if more > 0 else [])]
