"""The mail: its text, its HTML, and both as one message."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from itertools import groupby
from typing import Final

from headgate.apps.newsletter.contract import Label
from headgate.apps.newsletter.mail_page import HEADINGS, Section, page
from headgate.apps.newsletter.selection import Selected

_WIDTH: Final = 76


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
        """For files and message ids. No run's id has a plus: no two mails are called the same."""
        return self.run_id if self.part == 1 else f"{self.run_id}+{self.part}"

    @property
    def subject(self) -> str:
        part = "" if self.part == 1 else f" (part {self.part})"
        return f"{self.title}, {self.day}{part}"

    @property
    def day(self) -> str:
        return f"{self.date.day} {self.date:%B %Y}"

    @property
    def warning(self) -> str:
        """The first line, where the simulated provider judged."""
        simulated = sum(one.verdict.simulated for one in self.selected)
        if not simulated:
            return ""
        which = "All" if simulated == len(self.selected) else f"{simulated} of {len(self.selected)}"
        return f"{which} verdicts in this mail are SIMULATED: no language model read the items."

    def text(self) -> str:
        lines = [self.warning, ""] if self.warning else []
        lines += [self.subject, "=" * len(self.subject), ""]
        for section in self._sections():
            heading = HEADINGS[section.label]
            lines += ["", heading, "-" * len(heading), ""]
            for one in section.selected:
                lines += [*_wrapped(one.item.title, "* ", "  "), *_wrapped(one.verdict.summary, "  ", "  ")]
                lines += [f"  {one.item.url}", *_wrapped(one.about, "  ", "  "), ""]
        return "\n".join([*lines, "-- ", *_wrapped(self.note, "", ""), ""])

    def html(self) -> str:
        return page(
            self.title,
            self.day,
            self._sections(),
            subject=self.subject,
            warning=self.warning,
            note=self.note,
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
        # So that no holiday notice is sent back to a machine.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(self.text())
        message.add_alternative(self.html(), subtype="html")
        return message

    def _sections(self) -> list[Section]:
        return [
            Section(Label(label), tuple(group))
            for label, group in groupby(self.selected, key=lambda one: one.verdict.interest_label)
        ]


def _wrapped(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )
