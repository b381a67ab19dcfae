"""Mail servers as they are: encrypted in two ways, asking for a login, refusing, silent, dying."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from apps.newsletter.mail_server import LOGIN, MailServer, mail_server
from transport import certificates

import headgate
from headgate.apps.newsletter.options import NewsletterOptions, SmtpTls
from headgate.apps.newsletter.smtp import NotDelivered, send

MESSAGE = b"Subject: x\r\n\r\nwords\r\n"
HUSH: dict[str, Any] = {"smtp_user": LOGIN[0], "smtp_password": LOGIN[1]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> certificates.Certificates:
    return certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def trusted(made: certificates.Certificates, monkeypatch: pytest.MonkeyPatch) -> certificates.Certificates:
    """As an operator makes an authority of their own known to OpenSSL."""
    monkeypatch.setenv("SSL_CERT_FILE", made.ca_file)
    return made


def _send(house: MailServer, *, within_s: float = 30.0, **options: Any) -> tuple[str, ...]:
    known = {"mail_from": "news@example.org", "mail_to": ("you@example.org",), "smtp_host": "127.0.0.1"}
    with mail_server(house):
        chosen = NewsletterOptions(**{**known, "smtp_port": house.port, **options})
        return asyncio.run(send(MESSAGE, chosen, within_s=within_s))


@pytest.mark.parametrize("implicit", [False, True])
def test_login_and_mail_are_said_encrypted_only(trusted: certificates.Certificates, implicit: bool) -> None:
    house = MailServer(tls=trusted.server, implicit=implicit)
    tls = SmtpTls.IMPLICIT if implicit else SmtpTls.STARTTLS
    assert _send(house, smtp_tls=tls, **HUSH) == ()
    assert house.received == [MESSAGE]
    in_the_clear = [word for word in house.heard if not word.startswith("+")]
    assert in_the_clear == ([] if implicit else ["EHLO", "STARTTLS"])
    assert "+AUTH" in house.heard


def test_a_stranger_s_certificate_gets_no_password(made: certificates.Certificates) -> None:
    """Whoever sits in between offers a certificate, too."""
    house = MailServer(tls=made.server)
    with pytest.raises(NotDelivered, match=r"gives no encrypted connection: .*CERTIFICATE.*Check smtp_tls"):
        _send(house, **HUSH)
    assert house.heard == ["EHLO", "STARTTLS"]


def test_without_encryption_on_offer_nothing_is_said() -> None:
    """Somebody in between may have taken the offer out."""
    house = MailServer()
    with pytest.raises(NotDelivered, match="gives no encrypted connection: STARTTLS"):
        _send(house)
    assert "MAIL" not in house.heard


def test_a_wrong_password_is_told_and_never_printed(trusted: certificates.Certificates) -> None:
    for password in ("wrong-one", "wröng-one"):
        with pytest.raises(
            NotDelivered, match=r"does not let us in: .*Check smtp_user and smtp_password"
        ) as caught:
            _send(MailServer(tls=trusted.server), smtp_user="me", smtp_password=password)
        assert "wr" not in str(caught.value).replace("wrong name or password", "")


def test_some_receivers_refused_are_told_and_the_others_have_their_mail() -> None:
    """To raise here would mail everybody again the next time."""
    house = MailServer()
    refused = _send(house, smtp_tls=SmtpTls.NONE, mail_to=("nobody@example.org", "you@example.org"))
    assert (refused, house.received) == (("nobody@example.org",), [MESSAGE])


@pytest.mark.parametrize(
    ("house", "said"),
    [
        (MailServer(greeting=b"554 not from you"), "cannot be reached: 554 not from you"),
        (MailServer(dies_at=b"MAIL"), "did not take the mail: the connection broke"),
        (MailServer(dies_at=b"EHLO"), "the connection broke"),
    ],
)
def test_a_server_that_turns_us_away_or_hangs_up_is_told(house: MailServer, said: str) -> None:
    with pytest.raises(NotDelivered, match=said):
        _send(house, smtp_tls=SmtpTls.NONE)


def test_all_receivers_refused_names_them_and_the_setting() -> None:
    with pytest.raises(NotDelivered, match=r"nobody@example.org: 550 5.1.1 .*Check mail_from and mail_to"):
        _send(MailServer(), smtp_tls=SmtpTls.NONE, mail_to=("nobody@example.org",))


def test_nobody_at_that_port_is_told() -> None:
    with pytest.raises(NotDelivered, match=r"127\.0\.0\.1:1 .*cannot be reached: .*Check smtp_host"):
        _send(MailServer(), smtp_port=1)


def test_a_server_that_says_one_letter_at_a_time_is_left() -> None:
    """Every letter is in time; a run must end all the same, and a Lambda before it is killed."""
    began = time.monotonic()
    with pytest.raises(NotDelivered, match=r"longer than 0\.2 s"):
        _send(MailServer(drips=True), within_s=0.2, smtp_tls=SmtpTls.NONE)
    assert time.monotonic() - began < 5


def test_ports_follow_the_encryption_and_a_password_needs_one(tmp_path: Path) -> None:
    assert NewsletterOptions().smtp_server_port == 587
    assert NewsletterOptions(smtp_tls=SmtpTls.IMPLICIT).smtp_server_port == 465
    with pytest.raises(headgate.InvalidSettings, match="in the clear"):
        NewsletterOptions(smtp_tls=SmtpTls.NONE, **HUSH)
    file = tmp_path / "headgate.yaml"
    file.write_text(
        "apps: {newsletter: {smtp_host: m, mail_from: a@b.example, mail_to: [a@b.example], smtp_user: me,"
        ' smtp_tls: implicit, smtp_password: "${SMTP_PASSWORD}"}}'
    )
    read = headgate.read_settings(file, env={"SMTP_PASSWORD": LOGIN[1]})
    options = read.apps["newsletter"]
    assert isinstance(options, NewsletterOptions)
    assert (options.smtp_password, options.smtp_server_port) == (LOGIN[1], 465)
    assert LOGIN[1] not in repr(read)
    with pytest.raises(headgate.SettingsError, match="SMTP_PASSWORD"):
        headgate.read_settings(file, env={})
