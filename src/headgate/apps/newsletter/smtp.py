"""Handing a mail to a mail server. Whatever goes wrong is told by the step it went wrong in, with the settings to look at."""

import asyncio
import smtplib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import headgate
from headgate.apps.newsletter.options import NewsletterOptions, SmtpTls

STEP_S: Final = 10.0
"""The longest wait for one word of the server."""
WHOLE_S: Final = 60.0
"""… and for all of them: a server may say one letter at a time."""


class NotDelivered(headgate.HeadgateError):
    """The mail did not leave. The verdicts are kept: the run can go on."""

    code = "newsletter_not_delivered"


async def send(message: bytes, options: NewsletterOptions, *, within_s: float) -> tuple[str, ...]:
    """The receivers whom the server does not take; `NotDelivered` when it takes none."""
    client = _Client(options)
    within_s = max(0.0, min(within_s, WHOLE_S))
    sending = asyncio.ensure_future(asyncio.to_thread(client.send, message))
    try:
        async with asyncio.timeout(within_s):
            return await asyncio.shield(sending)
    except TimeoutError:
        raise NotDelivered(
            f"{client.place} (apps.newsletter.smtp_host) took longer than {within_s:.1f} s."
        ) from None
    finally:
        # A thread cannot be cancelled; without its connection it ends.
        client.hang_up()
        with suppress(NotDelivered):
            await sending


class _Client:
    """One conversation with the server, in a thread of its own."""

    def __init__(self, options: NewsletterOptions) -> None:
        self._options = options
        self._server: smtplib.SMTP | None = None
        self.place = f"{options.smtp_host}:{options.smtp_server_port}"

    def send(self, message: bytes) -> tuple[str, ...]:
        options = self._options
        server = self._server = self._new()
        try:
            with self._step("cannot be reached", "smtp_host, smtp_port and smtp_tls"):
                code, words = server.connect(options.smtp_host or "", options.smtp_server_port)
                if code != 220:
                    raise smtplib.SMTPConnectError(code, words)
            if options.smtp_tls is SmtpTls.STARTTLS:
                with self._step("gives no encrypted connection", "smtp_tls and smtp_port"):
                    server.starttls(context=ssl.create_default_context())
            if options.smtp_user is not None:
                with self._step("does not let us in", "smtp_user and smtp_password"):
                    server.login(options.smtp_user, options.smtp_password or "")
            with self._step("did not take the mail", "mail_from and mail_to"):
                return tuple(server.sendmail(options.mail_from or "", options.mail_to, message))
        finally:
            with suppress(OSError, smtplib.SMTPException):
                server.quit()

    def hang_up(self) -> None:
        connection = None if self._server is None else self._server.sock
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _new(self) -> smtplib.SMTP:
        """Not connected yet: somebody must be able to hang up from the first moment on."""
        if self._options.smtp_tls is SmtpTls.IMPLICIT:
            server: smtplib.SMTP = smtplib.SMTP_SSL(timeout=STEP_S, context=ssl.create_default_context())
        else:
            server = smtplib.SMTP(timeout=STEP_S)
        # Certificates are checked against it. The constructor sets it only when it connects, too.
        server._host = self._options.smtp_host or ""  # type: ignore[attr-defined]  # noqa: SLF001
        return server

    @contextmanager
    def _step(self, what: str, settings: str) -> Iterator[None]:
        try:
            yield
        except (OSError, smtplib.SMTPException, ValueError) as error:
            raise NotDelivered(
                f"{self.place} (apps.newsletter.smtp_host) {what}: {_said(error)}. Check {settings}."
            ) from error


def _said(error: Exception) -> str:
    """The server's own words, where it said any: the codes in them help."""
    match error:
        case smtplib.SMTPRecipientsRefused(recipients=refused):
            return "; ".join(f"{who}: {_words(*answer)}" for who, answer in list(refused.items())[:3])
        case smtplib.SMTPResponseException(smtp_code=code, smtp_error=words):
            return _words(code, words)
        case UnicodeError():
            return "the settings have letters that cannot be sent there"
        case TimeoutError():
            return f"no answer within {STEP_S:g} s"
        case smtplib.SMTPServerDisconnected():
            return f"the connection broke ({error})"
    return str(error) or type(error).__name__


def _words(code: int, words: bytes | str) -> str:
    text = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    return f"{code} {' '.join(text.split())}"[:300].strip()
