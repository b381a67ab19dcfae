"""The mail: its text, its HTML, and both as one message. Everything in it is escaped: feeds are written by strangers."""

import html
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from itertools import groupby
from typing import Final

from headgate.apps.newsletter.contract import Label
from headgate.apps.newsletter.selection import Selected

HEADINGS: Final = {Label.ACT_NOW: "Act now", Label.THINK: "Worth thinking about", Label.FYI: "Good to know"}
_COLOURS: Final = {Label.ACT_NOW: "#dc2626", Label.THINK: "#3b82f6", Label.FYI: "#78716c"}
"""To be read on white and on black."""
_WIDTH: Final = 78
_STYLE: Final = (
    "body{margin:0;padding:24px 12px;background:#f5f5f4;color:#1c1917;font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:640px;margin:0 auto;padding:24px;background:#fff;border-radius:8px}"
    "h1{font-size:24px;margin:0 0 4px}h2{font-size:17px;margin:28px 0 8px}h3{font-size:16px;margin:0}"
    "article{margin:0 0 18px}p{margin:4px 0}a{color:inherit}.quiet{color:#57534e;font-size:13px}"
    "@media(prefers-color-scheme:dark){body{background:#1c1917;color:#e7e5e4}main{background:#292524}"
    ".quiet{color:#a8a29e}}"
)


@dataclass(frozen=True, slots=True)
class Mail:
    """One mail of one run; `part` counts from 1."""

    run_id: str
    part: int
    title: str
    date: datetime
    selected: Sequence[Selected]
    note: str
    """How the selection came about, for the last line."""

    @property
    def name(self) -> str:
        """For files."""
        return self.run_id if self.part == 1 else f"{self.run_id}-{self.part}"

    @property
    def subject(self) -> str:
        return f"{self.title}, {self.day}"

    @property
    def day(self) -> str:
        return f"{self.date.day} {self.date:%B %Y}"

    def text(self) -> str:
        lines = [self.subject, "=" * len(self.subject), ""]
        for label, group in self._groups():
            lines += [HEADINGS[label], "-" * len(HEADINGS[label]), ""]
            for one in group:
                lines += [*_wrapped(one.item.title, "* ", "  "), *_wrapped(one.verdict.summary, "  ", "  ")]
                lines += [f"  {one.item.url}", *_wrapped(_about(one), "  ", "  "), ""]
        return "\n".join([*lines, "-- ", *_wrapped(self.note, "", ""), ""])

    def html(self) -> str:
        sections = "\n".join(_section(label, group) for label, group in self._groups())
        return (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self.subject)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
            f'<h1>{html.escape(self.title)}</h1>\n<p class="quiet">{html.escape(self.day)}</p>\n{sections}\n'
            f'<p class="quiet">{html.escape(self.note)}</p>\n</main>\n</body>\n</html>\n'
        )

    def message(self, sender: str, receivers: Sequence[str]) -> EmailMessage:
        """The same run sends the same id: whoever gets it twice, after a crash, can tell."""
        # Seven bits pass every server.
        message = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
        message["Subject"] = self.subject
        message["From"] = Address(addr_spec=sender)
        message["To"] = [Address(addr_spec=receiver) for receiver in receivers]
        message["Date"] = self.date
        message["Message-ID"] = f"<{self.name}@{sender.partition('@')[2]}>"
        message.set_content(self.text())
        message.add_alternative(self.html(), subtype="html")
        return message

    def _groups(self) -> Iterator[tuple[Label, list[Selected]]]:
        for label, group in groupby(self.selected, key=lambda one: one.verdict.interest_label):
            yield label, list(group)


def _section(label: Label, group: Sequence[Selected]) -> str:
    articles = "\n".join(_article(one) for one in group)
    return f'<section>\n<h2 style="color:{_COLOURS[label]}">{html.escape(HEADINGS[label])}</h2>\n{articles}\n</section>'


def _article(one: Selected) -> str:
    return (
        f'<article>\n<h3><a href="{html.escape(one.item.url)}">{html.escape(one.item.title)}</a></h3>\n'
        f"<p>{html.escape(one.verdict.summary)}</p>\n"
        f'<p class="quiet">{html.escape(_about(one))}</p>\n</article>'
    )


def _about(one: Selected) -> str:
    parts = [one.item.source or one.item.domain, *(f"#{tag}" for tag in one.verdict.tags)]
    return " · ".join(parts)


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
