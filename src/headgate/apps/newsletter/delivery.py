"""Where mails go: into files always, to a mail server when one is set."""

import asyncio
import os
import smtplib
import ssl
import tempfile
from pathlib import Path
from typing import Final

import headgate
from headgate.apps.newsletter.mail import Mail
from headgate.apps.newsletter.options import NewsletterOptions

SMTP_TIMEOUT_S: Final = 10.0
NOBODY: Final = "newsletter@localhost"


class NotDelivered(headgate.HeadgateError):
    """The mail server did not take it. The verdicts are kept: the run can go on."""

    code = "newsletter_not_delivered"


async def deliver(mail: Mail, options: NewsletterOptions) -> list[Path]:
    """Send and write one mail; the files that hold it."""
    message = mail.message(options.mail_from or NOBODY, options.mail_to or (NOBODY,))
    if options.smtp_host is not None:
        try:
            await asyncio.to_thread(_send, bytes(message), options)
        except (OSError, smtplib.SMTPException) as error:
            raise NotDelivered(
                f"{options.smtp_host}:{options.smtp_port} (apps.newsletter.smtp_host) did not take the mail:"
                f" {type(error).__name__}: {error}"
            ) from error
    pieces = {"txt": mail.text().encode(), "html": mail.html().encode(), "eml": bytes(message)}
    return [_write(options.out / f"{mail.name}.{kind}", content) for kind, content in pieces.items()]


def _send(message: bytes, options: NewsletterOptions) -> None:
    with smtplib.SMTP(options.smtp_host or "", options.smtp_port, timeout=SMTP_TIMEOUT_S) as server:
        if options.smtp_tls:
            server.starttls(context=ssl.create_default_context())
        if options.smtp_user is not None:
            server.login(options.smtp_user, options.smtp_password or "")
        server.sendmail(options.mail_from or "", options.mail_to, message)


def _write(path: Path, content: bytes) -> Path:
    """Whole or not at all: a file is only there under its name when everything is in it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path
