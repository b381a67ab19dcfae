"""What an operator can decide about the newsletter, as one checked record."""

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import headgate

_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_ADDRESS: Final = re.compile(rf"{_ATOM}(\.{_ATOM})*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")


class SmtpTls(enum.StrEnum):
    """How the connection to the mail server is encrypted."""

    STARTTLS = "starttls"
    """Before anything else is said; port 587."""
    IMPLICIT = "implicit"
    """From the first byte; port 465."""
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewsletterOptions:
    """`apps: {newsletter: {…}}` in the settings. Without any, the samples that ship are judged by a simulation."""

    model: str | None = None
    """A model of the settings; None: the one that BEDROCK_* describe. Without either only the samples are judged."""
    parallel: int | None = None
    """Items judged at a time; None: BEDROCK_MAX_PARALLEL."""
    profile: Path | None = None
    """The interests, in YAML; None: the sample."""
    feeds: Path | None = None
    """OPML, or a list in YAML; None: the sample."""
    local_feeds: bool = False
    """Feeds may be files beside the list."""
    private_feeds: bool = False
    """Feeds may be on this machine and in private networks, at any port."""
    host_spacing_s: float = 1.0
    """Between two feeds of one host."""
    candidates: int = 120
    """Items judged in one run, the newest first."""
    candidates_per_domain: int = 0
    """0: no bound."""
    selected: int = 15
    """Items in one mail."""
    selected_per_domain: int = 0
    """0: no bound."""
    most_fallbacks: float = 0.5
    """The share of items without a verdict above which a run is aborted."""
    out: Path = Path("newsletter")
    """The folder for mails."""
    title: str = "Newsletter"
    mail_from: str | None = None
    mail_to: tuple[str, ...] = ()
    smtp_host: str | None = None
    """None: mails are files only."""
    smtp_port: int | None = None
    """None: 587, or 465 where `smtp_tls` is `implicit`."""
    smtp_tls: SmtpTls = SmtpTls.STARTTLS
    smtp_user: str | None = None
    smtp_password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        review = headgate.Review()
        review.number("parallel", self.parallel, least=1, most=1000, whole=True)
        review.number("host_spacing_s", self.host_spacing_s, most=3600)
        review.number("candidates", self.candidates, least=1, most=500, whole=True)
        review.number("candidates_per_domain", self.candidates_per_domain, whole=True)
        review.number("selected", self.selected, least=1, most=1000, whole=True)
        review.number("selected_per_domain", self.selected_per_domain, whole=True)
        review.number("most_fallbacks", self.most_fallbacks, most=1)
        review.number("smtp_port", self.smtp_port, least=1, most=65_535, whole=True)
        self._check_mail(review)
        review.refuse()

    @property
    def smtp_server_port(self) -> int:
        return self.smtp_port or (465 if self.smtp_tls is SmtpTls.IMPLICIT else 587)

    def _check_mail(self, review: headgate.Review) -> None:
        if not self.title.strip() or not self.title.isprintable():
            review.add("title", f"must be text on one line, not {self.title!r:.60}")
        for index, address in enumerate(self.mail_to):
            if not _is_address(address):
                review.add(f"mail_to[{index}]", f"must be an address, not {address!r:.60}")
        if self.mail_from is not None and not _is_address(self.mail_from):
            review.add("mail_from", f"must be an address, not {self.mail_from!r:.60}")
        if self.smtp_host is not None and not (self.mail_from and self.mail_to):
            review.add("smtp_host", "needs mail_from and mail_to")
        if (self.smtp_user is None) != (self.smtp_password is None):
            review.add("smtp_user", "and smtp_password belong together")
        if self.smtp_user is not None and self.smtp_tls is SmtpTls.NONE:
            review.add("smtp_tls", "must be starttls or implicit: a password is not sent in the clear")


def _is_address(text: object) -> bool:
    return isinstance(text, str) and _ADDRESS.fullmatch(text) is not None
