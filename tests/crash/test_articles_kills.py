"""Kill the server in the middle of a queue of articles: each gets its summary, and hardly one is paid for twice."""

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import internal_errors
from apps.newsletter.judge_server import JudgeServer, judging

ARTICLES = 60
SLOTS = 4
SRC = str(Path(__file__).parents[2] / "src")


class Summariser(JudgeServer):
    def answer(self, question: str) -> tuple[str, str]:
        [number] = set(re.findall(r"bridge number (\d+)", question))
        return number, f"Bridge {number} is mended, and the council has said so."


def _serve(folder: Path, port: int, base_url: str) -> "subprocess.Popen[bytes]":
    upstream = f'{{provider: openai, model: s, base_url: "{base_url}", api_key: k, slots: {SLOTS}}}'
    (folder / "headgate.yaml").write_text(
        f"listen: 127.0.0.1:{port}\nmodels: {{m: {{upstreams: [{upstream}]}}}}\napps: {{articles: {{model: m}}}}\n"
    )
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "headgate", "serve"],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": SRC},
            stdout=subprocess.DEVNULL,
            stderr=log,
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _until_served(client: httpx.Client, process: "subprocess.Popen[bytes]") -> None:
    while process.poll() is None:
        try:
            client.get("/health/live")
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"the server ended with {process.returncode}")


def _queue(client: httpx.Client, number: int) -> Any:
    content = f"The council has met and has decided to mend bridge number {number} within the year. " * 3
    answer = client.post("/api/v1/summarize/queue", json={"article_id": f"a{number}", "content": content})
    assert answer.status_code == 202, answer.text
    return answer.json()


def test_a_killed_server_loses_no_article_and_pays_at_most_for_those_in_flight(tmp_path: Path) -> None:
    port = _free_port()
    with (
        judging(latency_s=0.05, kind=Summariser) as upstream,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        process = _serve(tmp_path, port, upstream.base_url)
        _until_served(client, process)
        jobs = [_queue(client, number)["job_id"] for number in range(ARTICLES)]
        while upstream.calls < ARTICLES // 3 and process.poll() is None:
            time.sleep(0.005)
        process.kill()
        process.wait()
        assert upstream.calls < ARTICLES, "it was killed in the middle"
        process = _serve(tmp_path, port, upstream.base_url)
        try:
            _until_served(client, process)
            states = [client.get(f"/v1/jobs/{job}", params={"wait": 30}).json()["state"] for job in jobs]
            assert set(states) == {"completed"}
            told = [client.get(f"/api/v1/summarize/status/{job}").json()["summary"] for job in jobs]
            assert told == [
                f"Bridge {number} is mended, and the council has said so." for number in range(ARTICLES)
            ]
            assert len(upstream.asked) == ARTICLES
            assert upstream.calls <= ARTICLES + SLOTS
            assert _queue(client, 7)["reason"] == "summary_exists"
        finally:
            process.terminate()
            process.wait(30)
            internal_errors.read((tmp_path / "log").read_bytes())
