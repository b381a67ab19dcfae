"""Mails: what is selected, what strangers' words become in them, and how they reach a mail server."""

import asyncio
from datetime import UTC, datetime
from email import message_from_bytes, policy
from pathlib import Path
from typing import Any

import pytest
from apps.newsletter.mail_server import MailServer, mail_server

import headgate
from headgate.apps.newsletter.contract import Label
from headgate.apps.newsletter.delivery import deliver
from headgate.apps.newsletter.items import Item
from headgate.apps.newsletter.mail import Mail
from headgate.apps.newsletter.opening import check_run_id
from headgate.apps.newsletter.options import NewsletterOptions, SmtpTls
from headgate.apps.newsletter.selection import Selected, select
from headgate.apps.newsletter.smtp import NotDelivered
from headgate.apps.newsletter.verdicts import Outcome, Verdict


def _verdict(label: Label, confidence: float = 0.5, **more: Any) -> Verdict:
    values = {"outcome": Outcome.OK, "summary": "s", "tags": ("t",), "run_id": "r", **more}
    return Verdict(interest_label=label, confidence=confidence, **values)


def _item(name: str, host: str = "a") -> Item:
    return Item(url=f"https://{host}.example/{name}", title=name, source="Source")


def _mail(*selected: Selected) -> Mail:
    return Mail("r", 1, "News", datetime(2026, 1, 2, tzinfo=UTC), selected, "a note")


def test_the_important_come_first_then_the_sure_and_ignored_ones_and_fallbacks_never() -> None:
    items = [_item(name) for name in ("fyi", "unsure", "sure", "now", "ignored", "failed", "late", "unknown")]
    verdicts = [
        _verdict(Label.FYI, 0.99),
        _verdict(Label.THINK, 0.4),
        _verdict(Label.THINK, 0.9),
        _verdict(Label.ACT_NOW, 0.1),
        _verdict(Label.IGNORE, 1.0),
        _verdict(Label.ACT_NOW, outcome=Outcome.FALLBACK),
        _verdict(Label.ACT_NOW, outcome=Outcome.SKIPPED),
    ]
    known = {item.id: verdict for item, verdict in zip(items, verdicts, strict=False)}
    chosen = [one.item.title for one in select(items, known, most=15, per_domain=0)]
    assert chosen == ["now", "sure", "unsure", "fyi"]
    assert [one.item.title for one in select(items, known, most=3, per_domain=2)] == ["now", "sure"]


def test_strangers_words_are_text_in_a_mail_and_nothing_else() -> None:
    evil = Item(
        url='https://a.example/?q="><script>x</script>', title="<script>alert(1)</script>", source="<b>"
    )
    page = _mail(Selected(evil, _verdict(Label.FYI, summary="<img src=x onerror=y>", tags=("<i>",)))).html()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page


def _options(folder: Path, port: int, to: str = "you@example.org") -> NewsletterOptions:
    return NewsletterOptions(
        out=folder,
        mail_from="news@example.org",
        mail_to=(to,),
        smtp_host="127.0.0.1",
        smtp_port=port,
        smtp_tls=SmtpTls.NONE,
    )


def test_a_mail_reaches_the_server_whole_and_is_a_file_too(tmp_path: Path) -> None:
    mail = _mail(Selected(_item("Ein Titel mit ü"), _verdict(Label.FYI)))
    with mail_server(MailServer()) as server:
        delivered = asyncio.run(deliver(mail, _options(tmp_path, server.port)))
    [received] = server.received
    assert received == (tmp_path / "r.eml").read_bytes()
    assert b"Message-ID: <r@example.org>" in received
    assert [file.suffix for file in delivered.files] == [".txt", ".html", ".eml"]


def test_a_server_that_refuses_is_told_and_the_mail_is_kept(tmp_path: Path) -> None:
    with mail_server(MailServer()) as server:
        options = _options(tmp_path, server.port, to="nobody@example.org")
        with pytest.raises(NotDelivered, match=r"smtp_host.*kept in .*r\.eml"):
            asyncio.run(deliver(_mail(Selected(_item("a"), _verdict(Label.FYI))), options))
    assert b"Subject: News" in (tmp_path / "r.eml").read_bytes()


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    mail = _mail(Selected(_item("a"), _verdict(Label.FYI)))
    with pytest.raises(NotDelivered, match=r"cannot be written to .*apps\.newsletter\.out"):
        asyncio.run(deliver(mail, NewsletterOptions(out=tmp_path / "out")))


def test_a_message_keeps_to_the_letter_of_the_standard() -> None:
    """Seven bits, no line over 998, each header once; strangers' words get into none of them."""
    item = Item(url="https://a.example/" + "x" * 1900, title="T\n\nBcc: them@example.org 👩‍💻 " + "word" * 70)
    mail = _mail(Selected(item, _verdict(Label.THINK, summary="日本語" * 90)))
    raw = bytes(mail.message("news@example.org", ["a@example.org", "b@example.org"]))
    assert raw.isascii()
    assert raw.count(b"\n") == raw.count(b"\r\n")
    assert max(map(len, raw.split(b"\r\n"))) <= 78
    message = message_from_bytes(raw, policy=policy.strict)
    assert sorted(message.keys()) == sorted(
        ["Subject", "From", "To", "Date", "Message-ID", "Auto-Submitted", "MIME-Version", "Content-Type"]
    )
    kinds = [part.get_content_type() for part in message.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "text/html"]
    assert [part.get_content_charset() for part in message.iter_parts()] == ["utf-8", "utf-8"]


def test_a_second_mail_of_a_run_is_told_from_the_first_and_from_other_runs() -> None:
    second = Mail("r", 2, "News", datetime(2026, 1, 2, tzinfo=UTC), (), "a note")
    assert (second.name, second.subject) == ("r+2", "News, 2 January 2026 (part 2)")
    for run_id in ("r+2", "a..b", "a.", ".a", "-a", "a" * 101):
        with pytest.raises(headgate.InvalidRequest):
            check_run_id(run_id)
