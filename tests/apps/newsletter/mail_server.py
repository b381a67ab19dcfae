"""A mail server on loopback that takes mail, in the clear, after STARTTLS or encrypted from the first byte, or is difficult."""

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Event, Thread

LOGIN = ("me@example.org", "hush-hush")


@dataclass
class MailServer:
    tls: ssl.SSLContext | None = None
    implicit: bool = False
    drips: bool = False
    """Says one letter at a time, for ever."""
    greeting: bytes = b"220 here"
    dies_at: bytes = b""
    """Hangs up when it hears this word."""
    received: list[bytes] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    """Commands; those that came encrypted begin with a plus."""
    port: int = 0
    over: Event = field(default_factory=Event)


class _Conversation(StreamRequestHandler):
    def handle(self) -> None:
        try:
            self._converse()
        finally:
            self.connection.close()

    def _converse(self) -> None:
        house: MailServer = self.server.house  # type: ignore[attr-defined]
        self._encrypted = False
        if house.implicit:
            self._encrypt(house)
        if house.drips:
            while not house.over.wait(0.02):
                self.wfile.write(b"x")
        self._say(house.greeting)
        while line := self.rfile.readline():
            word, _, rest = line.strip().partition(b" ")
            house.heard.append(("+" if self._encrypted else "") + word.decode().upper())
            if word.upper() == house.dies_at:
                return
            if not self._answer(house, word.upper(), rest):
                return

    def _answer(self, house: MailServer, word: bytes, rest: bytes) -> bool:
        match word:
            case b"EHLO":
                offered = [b"STARTTLS"] if house.tls and not self._encrypted else []
                offered += [b"AUTH PLAIN"] if self._encrypted else []
                for number, words in enumerate([b"here", *offered]):
                    self._say(b"250" + (b" " if number == len(offered) else b"-") + words)
            case b"STARTTLS":
                self._say(b"220 go on")
                self._encrypt(house)
            case b"AUTH":
                given = base64.b64decode(rest.partition(b" ")[2]).decode().split("\0")[1:]
                self._say(b"235 come in" if tuple(given) == LOGIN else b"535 5.7.8 wrong name or password")
            case b"RCPT":
                self._say(b"550 5.1.1 nobody of that name" if b"nobody" in rest else b"250 ok")
            case b"DATA":
                self._say(b"354 go on")
                received = b""
                while (piece := self.rfile.readline()) != b".\r\n":
                    received += piece.removeprefix(b".")
                house.received.append(received)
                self._say(b"250 taken")
            case b"QUIT":
                self._say(b"221 bye")
                return False
            case _:
                self._say(b"250 ok")
        return True

    def _say(self, words: bytes) -> None:
        self.wfile.write(words + b"\r\n")

    def _encrypt(self, house: MailServer) -> None:
        assert house.tls is not None
        self.connection = house.tls.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", buffering=0)
        self._encrypted = True


class _Server(ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up, or does not trust the certificate, is no news."""


@contextmanager
def mail_server(house: MailServer) -> Iterator[MailServer]:
    with _Server(("127.0.0.1", 0), _Conversation) as server:
        server.house = house  # type: ignore[attr-defined]
        house.port = server.server_address[1]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield house
        finally:
            house.over.set()
            server.shutdown()
            thread.join()
