"""One dead letter: why it lies here, its input to edit, and what can be done: replay it, discard it."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from headgate.core.access import Action
from headgate.core.errors import HeadgateError, InvalidRequest
from headgate.core.job import Job, JobState
from headgate.core.json_trouble import check_json, why_no_json
from headgate.core.visible import escaped_json
from headgate.server.dashboard.dead_filters import check_model
from headgate.server.dashboard.foreign import address, indented, json_block, message
from headgate.server.dashboard.forms import button
from headgate.server.dashboard.history import history
from headgate.server.dashboard.html import Child, Markup, el, group
from headgate.server.dashboard.job import job_facts, json_address
from headgate.server.dashboard.job_words import DEAD_LETTERS, JOBS, REASONS, state_badge
from headgate.server.dashboard.page import Deed, Done, Form, Page, Section, Shown, Told, Visit
from headgate.server.dashboard.parts import badge, heading
from headgate.server.dashboard.sources import Sources
from headgate.server.errors import read_error

LONGEST_EDITED_BYTES: Final = 100_000
_REPLAY_BYTES: Final = 4 * LONGEST_EDITED_BYTES
"""A form spells most signs of a JSON text with three characters, and somebody may add to it."""
_BYTE: Final = re.compile(r"byte (\d+)")
_ONE: Final = f"{DEAD_LETTERS}/{{job_id}}"


def pages(sources: Sources) -> Sequence[Page]:
    one = OneDeadLetter(sources)
    replay = Deed(path=f"{_ONE}/replay", do=one.replay, form_bytes=_REPLAY_BYTES)
    deeds = [replay, Deed(path=f"{_ONE}/discard", do=one.discard)]
    return [Page(path=_ONE, entry="Dead letters", show=one.show, deeds=deeds)]


class OneDeadLetter:
    """`/dead-letters/{id}`."""

    def __init__(self, sources: Sources) -> None:
        self._gateway = sources.gateway

    async def show(self, visit: Visit) -> Shown:
        return _shown(await self._find(visit), visit)

    async def replay(self, visit: Visit, form: Form) -> Done | Told:
        job = await self._find(visit)
        text = form.get("input")
        try:
            edited = None if text is None else _read(text, job.input)
            check_model(visit.viewer, job.model)
            if edited is not None:
                check_model(visit.viewer, self._gateway.durable.intake.model_anew(job, edited))
            await self._gateway.dead_letters.replay(job.id, input=edited, by=visit.by, tenant=job.tenant)
        except HeadgateError as error:
            if text is None:
                raise
            failed = read_error(error)
            return Told(_shown(job, visit, text=text, trouble=failed.message), failed.status)
        how = "as it was" if edited is None else "with the input you gave"
        return Done(address(JOBS, job.id), f"It is replayed {how}. This page shows what becomes of it.")

    async def discard(self, visit: Visit, _: Form) -> Done:
        job = await self._find(visit)
        check_model(visit.viewer, job.model)
        await self._gateway.dead_letters.discard(job.id, by=visit.by, tenant=job.tenant)
        return Done(DEAD_LETTERS, f"{job.id} is discarded.")

    async def _find(self, visit: Visit) -> Job:
        return await self._gateway.jobs.get(visit.path["job_id"], tenant=visit.viewer.scope)


def _read(text: str, before: Any) -> Any:
    """What somebody typed; None when it means what was there before."""
    check_json(text.encode(errors="replace"), what="The input")
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        why = _placed(text.encode(errors="replace"), error)
        raise InvalidRequest(f"This is no JSON, so nothing was done: {why}", param="input") from None
    if value is None and before is not None:
        raise InvalidRequest("null is no input: leave the text as it was to keep the old one", param="input")
    # As texts: to Python, 1 and true are equal.
    return None if msgspec.json.encode(value) == msgspec.json.encode(before) else value


def _placed(text: bytes, error: Exception) -> str:
    """Why it is no JSON; where, as an editor tells it."""

    def place(found: re.Match[str]) -> str:
        before = text[: int(found[1])].decode(errors="replace")
        return f"line {before.count(chr(10)) + 1}, character {len(before) - before.rfind(chr(10))}"

    return _BYTE.sub(place, why_no_json(text, error))


def _shown(job: Job, visit: Visit, *, text: str | None = None, trouble: str | None = None) -> Shown:
    whole = json_address(job)
    back = el("p", el("a", "All dead letters", href=DEAD_LETTERS), " · ", el("a", "JSON", href=whole))
    if job.state is not JobState.DEAD_LETTER:
        return Shown(job.id, [Section("why", _elsewhere(job, text, trouble))], back)
    return Shown(
        job.id,
        [
            Section("why", _why(job)),
            Section("input", _input(job, visit, text, trouble)),
            Section("facts", job_facts(job, visit)),
            Section("history", history(job, visit, whole)),
        ],
        back,
    )


def _elsewhere(job: Job, text: str | None, trouble: str | None) -> Markup:
    """It was replayed or discarded meanwhile. What was typed is not lost."""
    typed = None if text is None else group(heading("What you typed"), el("textarea", "\n", text, rows=12))
    return group(
        None if trouble is None else el("p", trouble, class_="notice bad"),
        el(
            "p",
            "This is no dead letter any more: it is ",
            state_badge(job),
            ". ",
            el("a", "See what becomes of it", href=address(JOBS, job.id)),
        ),
        typed,
    )


def _why(job: Job) -> Markup:
    words = REASONS.get(job.reason or "", "")
    head = el("p", badge(job.reason or "dead letter", "bad"), " ", words)
    return el("div", head, message(job.error or job.error_class), class_="card")


def _input(job: Job, visit: Visit, text: str | None, trouble: str | None) -> Markup:
    whole = json_address(job)
    if not visit.viewer.may(Action.OPERATE):
        return group(heading("Input"), json_block(job.input, whole))
    if text is not None:
        return group(heading("Input"), _editor(job, text, trouble))
    encoded = msgspec.json.encode(job.input)
    written = indented(encoded) if len(encoded) <= LONGEST_EDITED_BYTES else encoded
    if len(written) > LONGEST_EDITED_BYTES:
        return group(heading("Input"), json_block(job.input, whole), _too_long(job), _actions(job))
    return group(heading("Input"), _editor(job, escaped_json(written.decode()), trouble))


def _too_long(job: Job) -> Markup:
    command = f"headgate dead replay {job.id} --input - < new.json"
    return el("p", "It is too long to be edited here. To replay it with another one: ", el("code", command))


def _editor(job: Job, written: str, trouble: str | None) -> Markup:
    area = el(
        "textarea",
        # A browser drops the first line end.
        "\n",
        written,
        name="input",
        id="edited",
        rows=min(24, max(6, written.count("\n") + 2)),
        spellcheck="false",
        autocomplete="off",
        aria_label="The input, as JSON",
        aria_describedby="input-trouble",
        aria_invalid="true" if trouble else None,
        autofocus=trouble is not None,
    )
    form = el(
        "form",
        area,
        el("p", trouble or "", id="input-trouble", role="alert", class_="trouble"),
        el("p", el("button", "Replay with this input", type="submit")),
        method="post",
        action=address(DEAD_LETTERS, job.id, "replay"),
        class_="editor",
    )
    return group(form, _discard(job))


def _actions(job: Job) -> Markup:
    again = button("Replay as it is", address(DEAD_LETTERS, job.id, "replay"), kind="loud")
    return group(el("div", again, class_="actions"), _discard(job))


def _discard(job: Job) -> Markup:
    sure: Sequence[Child] = (
        el("p", "It is cancelled for good: it can still be looked at, but not replayed."),
        button("Yes, discard it", address(DEAD_LETTERS, job.id, "discard"), kind="danger"),
    )
    return el("details", el("summary", "Discard it instead…"), sure, class_="sure")
