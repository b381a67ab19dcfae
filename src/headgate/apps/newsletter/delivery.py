"""Where mails go: into files always, then to a mail server when one is set."""

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headgate.apps.newsletter.mail import Mail
from headgate.apps.newsletter.options import NewsletterOptions
from headgate.apps.newsletter.smtp import NotDelivered, send

NOBODY: Final = "newsletter@localhost"


@dataclass(frozen=True, slots=True)
class Delivered:
    """The files that hold the mail, whether a mail server took it, and the receivers that it refused."""

    files: tuple[Path, ...] = ()
    mailed: bool = False
    refused: tuple[str, ...] = ()


NOTHING: Final = Delivered()


async def deliver(mail: Mail, options: NewsletterOptions, *, within_s: float = math.inf) -> Delivered:
    """Files first: whatever the mail server says, what was judged can be read."""
    message = bytes(mail.message(options.mail_from or NOBODY, options.mail_to or (NOBODY,)))
    pieces = {"txt": mail.text().encode(), "html": mail.html().encode(), "eml": message}
    try:
        files = tuple(_write(options.out / f"{mail.name}.{kind}", piece) for kind, piece in pieces.items())
    except OSError as error:
        raise NotDelivered(
            f"the mail cannot be written to {options.out} (apps.newsletter.out, --out): {error.strerror or error}."
        ) from error
    if options.smtp_host is None:
        return Delivered(files)
    try:
        refused = await send(message, options, within_s=within_s)
    except NotDelivered as error:
        raise NotDelivered(f"{error} The mail is kept in {files[-1]}.") from error
    return Delivered(files, mailed=True, refused=refused)


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
