"""A mail server on this machine that keeps what it is given, as far as SMTP needs it."""

from __future__ import annotations

import contextlib
import email
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.message import Message
from email.policy import default

FINE, GO_ON, BYE = b"250 fine\r\n", b"354 go on\r\n", b"221 bye\r\n"


@dataclass
class Mailbox:
    """to_recipients: what it says to each of them."""

    port: int = 0
    to_recipients: bytes = FINE
    said: list[str] = field(default_factory=list)
    got: list[Message] = field(default_factory=list)


class _Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        mailbox: Mailbox = self.server.mailbox  # type: ignore[attr-defined]
        self.wfile.write(b"220 mail.example.org\r\n")
        while line := self.rfile.readline():
            said = line.decode().strip()
            mailbox.said.append(said)
            word = said.split(" ")[0].upper()
            if word == "DATA":
                self.wfile.write(GO_ON)
                mailbox.got.append(email.message_from_bytes(self._message(), policy=default))
            self.wfile.write({"RCPT": mailbox.to_recipients, "QUIT": BYE}.get(word, FINE))
            if word == "QUIT":
                return

    def _message(self) -> bytes:
        lines = []
        while (line := self.rfile.readline()).rstrip(b"\r\n") != b".":
            lines.append(line.removeprefix(b"."))
        return b"".join(lines)


@contextlib.contextmanager
def mailbox(to_recipients: bytes = FINE) -> Iterator[Mailbox]:
    box = Mailbox(to_recipients=to_recipients)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Session) as server:
        server.mailbox = box  # type: ignore[attr-defined]
        box.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield box
        finally:
            server.shutdown()
            thread.join(timeout=5)
