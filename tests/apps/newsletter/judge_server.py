"""An upstream in OpenAI's format that judges by the title and counts who asked; it outlives the processes that ask."""

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from headgate.apps.newsletter.judging_model import simulated_judge

_BY_PATTERN = [(re.compile(pattern), answer) for pattern, answer in simulated_judge().items()]


class JudgeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, latency_s: float, status: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.latency_s = latency_s
        self.status = status
        self.asked: Counter[str] = Counter()
        """By what it was about."""
        self._lock = threading.Lock()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    @property
    def calls(self) -> int:
        with self._lock:
            return self.asked.total()

    def answer(self, question: str) -> tuple[str, str]:
        """What it is about, and what is said to it."""
        found = ((pattern.search(question), answer) for pattern, answer in _BY_PATTERN)
        match, answer = next((match, answer) for match, answer in found if match)
        return match["title"], match.expand(answer)

    def judge(self, body: dict[str, Any]) -> dict[str, Any]:
        subject, content = self.answer(body["messages"][-1]["content"])
        with self._lock:
            self.asked[subject] += 1
        time.sleep(self.latency_s)
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "judge",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": content},
                }
            ],
            "usage": {"prompt_tokens": 900, "completion_tokens": 140, "total_tokens": 1040},
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: JudgeServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: dict[str, Any] = {"error": {"message": "no such model", "code": "model_not_found"}}
        if self.server.status == 200:
            answer = self.server.judge(body)
        said = json.dumps(answer).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        pass


@contextmanager
def judging(
    *, latency_s: float = 0.0, status: int = 200, kind: type[JudgeServer] = JudgeServer
) -> Iterator[JudgeServer]:
    server = kind(latency_s, status)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
