"""The last calls: searched, filtered, and one by one with every attempt. Metadata only; nobody's words are kept."""

from collections.abc import Sequence
from typing import Final

from headgate.core.errors import InvalidRequest, UnknownRequest
from headgate.observe.recent import MOST_KEPT, RequestStory, Status
from headgate.server.dashboard.foreign import word
from headgate.server.dashboard.forms import choice, filters, text
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.lists import add_tenants, id_link, pager
from headgate.server.dashboard.moments import amount, milliseconds
from headgate.server.dashboard.page import Page, Section, Shown, Visit
from headgate.server.dashboard.parts import badge, empty, facts, heading, table
from headgate.server.dashboard.sources import Sources

PATH: Final = "/requests"
SHOWN: Final = 50
_TIMES: Final = {"wait": "waited", "good": "answered after", "bad": "failed after"}
_TONES: Final = {
    Status.OK: "good",
    Status.FAILED: "bad",
    Status.REFUSED: "warn",
    Status.CANCELLED: "plain",
}
_STATUSES: Final = {"": "All", **{status.value: status.value for status in Status}}


def pages(sources: Sources) -> Sequence[Page]:
    requests = Requests(sources)
    return [
        Page(path=PATH, entry="Requests", show=requests.recent),
        Page(path=f"{PATH}/{{request_id:path}}", entry="Requests", show=requests.one, refresh_s=2.0),
    ]


class Requests:
    """`/requests` and `/requests/{id}`."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def recent(self, visit: Visit) -> Shown:
        found = self._found(visit)
        last = found[SHOWN - 1].id if len(found) > SHOWN else None
        form = filters(
            text("q", "Request id", visit.asked("q"), placeholder="Search ( / )"),
            text("model", "Model", visit.asked("model"), kind="text"),
            choice("status", "Outcome", _STATUSES, visit.asked("status")),
            to=PATH,
        )
        body = request_table(found[:SHOWN], visit) if found else self._nothing(visit)
        listed = group(body, pager(PATH, visit, last, "model", "status"))
        return Shown("Requests", [Section("requests", listed, "section steady")], form)

    async def one(self, visit: Visit) -> Shown:
        story = self._sources.recent.get(visit.path["request_id"], tenant=visit.viewer.scope)
        return Shown(
            story.id,
            [
                Section("story", _facts(story, visit)),
                Section("attempts", _attempts(story)),
                Section("refusals", _refusals(story)),
            ],
            el("p", el("a", "All requests", href=PATH)),
        )

    def _found(self, visit: Visit) -> list[RequestStory]:
        recent, scope = self._sources.recent, visit.viewer.scope
        if (wanted := visit.asked("q")) is not None:
            try:
                return [recent.get(wanted, tenant=scope)]
            except UnknownRequest:
                return []
        return recent.list(
            tenant=scope,
            model=visit.asked("model"),
            status=_status(visit.asked("status")),
            limit=SHOWN + 1,
            after=visit.asked("after"),
        )

    def _nothing(self, visit: Visit) -> Markup:
        if visit.query:
            words = f"The last {amount(MOST_KEPT)} calls of this process are kept; older ones are in logs/responses.jsonl."
            return empty("No call fits.", words, " ", el("a", "Show all", href=PATH))
        return empty("No call has ended yet.", "Send one to ", el("code", "POST /v1/chat/completions"), ".")


def _status(asked: str | None) -> Status | None:
    if not asked:
        return None
    try:
        return Status(asked)
    except ValueError:
        raise InvalidRequest(f"status must be one of {', '.join(Status)}, not {asked!r:.60}") from None


def request_table(found: Sequence[RequestStory], visit: Visit) -> Markup:
    """The latest end first."""
    heads = ["Request", "Ended", "Model", "Outcome", "Took", "Waited", "Calls"]
    rows: list[list[Child]] = [
        [
            id_link(PATH, story.id),
            visit.tell.ago(story.ended_at),
            word(_model(story)),
            _outcome(story),
            milliseconds(story.latency_ms),
            milliseconds(story.queue_ms),
            len(story.attempts),
        ]
        for story in found
    ]
    add_tenants(heads, rows, [story.tenant for story in found], visit)
    last = len(heads)
    return table(heads, rows, numeric=frozenset({last - 3, last - 2, last - 1}))


def _outcome(story: RequestStory) -> Markup:
    error = None if story.error is None else [" ", word(story.error)]
    return group(badge(story.status, _TONES[story.status]), error)


def _model(story: RequestStory) -> str:
    return story.model if story.upstream in {None, story.model} else f"{story.model} → {story.upstream}"


def _facts(story: RequestStory, visit: Visit) -> Markup:
    usage = story.usage
    tokens = None if usage is None else f"{amount(usage.input_tokens)} in, {amount(usage.output_tokens)} out"
    return facts(
        [
            ("Outcome", _outcome(story)),
            ("Model", word(story.model)),
            ("Upstream", story.upstream),
            ("Lane", story.lane),
            ("Ended", visit.tell.ago(story.ended_at)),
            ("Took", milliseconds(story.latency_ms)),
            ("Waited at gates", milliseconds(story.queue_ms)),
            ("First token after", _some(story.first_token_ms)),
            ("Tokens", tokens if usage is None or not usage.estimated else f"{tokens} (estimated)"),
            ("Cost", None if story.cost_usd is None else f"${story.cost_usd:.6f}"),
            ("Tenant", word(story.tenant)),
            ("Made for", None if story.origin is None else id_link(PATH, story.origin)),
            ("Calls made for it", [[id_link(PATH, call), " "] for call in story.calls] or None),
            ("Agent", None if story.agent_id is None else word(story.agent_id)),
        ]
    )


def _some(value_ms: float | None) -> str | None:
    return None if value_ms is None else milliseconds(value_ms)


def _attempts(story: RequestStory) -> Markup:
    if not story.attempts:
        return group(heading("Calls to providers"), empty("No provider was called."))
    rows = [
        (
            number,
            attempt.upstream,
            badge("answered", "good")
            if attempt.error is None
            else group(badge("failed", "bad"), " ", word(attempt.error)),
            milliseconds(attempt.duration_ms),
            milliseconds(attempt.wait_ms),
        )
        for number, attempt in enumerate(story.attempts, start=1)
    ]
    heads = ("Call", "Upstream", "Outcome", "Took", "Then waited")
    return group(
        heading("Calls to providers"), _timeline(story), table(heads, rows, numeric=frozenset({3, 4}))
    )


def _timeline(story: RequestStory) -> Markup | None:
    """How the time went: at gates, with providers, between attempts."""
    pieces: list[tuple[str, float]] = [("wait", story.queue_ms or 0.0)]
    for attempt in story.attempts:
        pieces.append(("bad" if attempt.error else "good", attempt.duration_ms))
        pieces.append(("wait", attempt.wait_ms or 0.0))
    whole_ms = sum(took_ms for _, took_ms in pieces)
    if whole_ms <= 0:
        return None
    drawn: list[Child] = []
    at = 0.0
    for tone, took_ms in pieces:
        width = 1000 * took_ms / whole_ms
        words = el("title", f"{_TIMES[tone]} {milliseconds(took_ms)}")
        drawn.append(
            el("rect", words, x=f"{at:.1f}", width=f"{max(width, 1.0):.1f}", y=0, height=10, class_=tone)
        )
        at += width
    label = f"{len(story.attempts)} calls within {milliseconds(whole_ms)}"
    return el(
        "svg",
        drawn,
        viewBox="0 0 1000 10",
        preserveAspectRatio="none",
        class_="timeline",
        role="img",
        aria_label=label,
    )


def _refusals(story: RequestStory) -> Markup:
    if not story.refusals:
        return group()
    rows = [
        (
            refusal.upstream,
            refusal.reason,
            None if refusal.retry_after_s is None else f"{refusal.retry_after_s:.0f} s",
        )
        for refusal in story.refusals
    ]
    return group(heading("Refused by gates"), table(("Upstream", "Why", "Come back after"), rows))
