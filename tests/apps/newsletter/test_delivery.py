"""Mails: what is selected, what strangers' words become in them, and how they reach a mail server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import Any

import pytest

from headgate.apps.newsletter.contract import Label
from headgate.apps.newsletter.delivery import NotDelivered, deliver
from headgate.apps.newsletter.items import Item
from headgate.apps.newsletter.mail import Mail
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.selection import Selected, select
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


class _Handler(StreamRequestHandler):
    def handle(self) -> None:
        server: Any = self.server
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                received = b""
                while (piece := self.rfile.readline()) != b".\r\n":
                    received += piece
                server.received.append(received)
            if word == b"QUIT":
                self.wfile.write(b"221 bye\r\n")
                return
            refused = word == b"RCPT" and b"nobody" in line
            self.wfile.write(b"550 no\r\n" if refused else b"250 ok\r\n")


@contextmanager
def _mail_server() -> Iterator[Any]:
    with ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        server.received = []  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _options(folder: Path, port: int, to: str = "you@example.org") -> NewsletterOptions:
    return NewsletterOptions(
        out=folder,
        mail_from="news@example.org",
        mail_to=(to,),
        smtp_host="127.0.0.1",
        smtp_port=port,
        smtp_tls=False,
    )


def test_a_mail_reaches_the_server_whole_and_is_a_file_too(tmp_path: Path) -> None:
    mail = _mail(Selected(_item("Ein Titel mit ü"), _verdict(Label.FYI)))
    with _mail_server() as server:
        files = asyncio.run(deliver(mail, _options(tmp_path, server.server_address[1])))
    [received] = server.received
    assert received == (tmp_path / "r.eml").read_bytes()
    assert b"Message-ID: <r@example.org>" in received
    assert [file.suffix for file in files] == [".txt", ".html", ".eml"]


def test_a_server_that_refuses_is_told_and_nothing_is_written(tmp_path: Path) -> None:
    with _mail_server() as server:
        options = _options(tmp_path / "out", server.server_address[1], to="nobody@example.org")
        with pytest.raises(NotDelivered, match="smtp_host"):
            asyncio.run(deliver(_mail(Selected(_item("a"), _verdict(Label.FYI))), options))
    assert not (tmp_path / "out").exists()
