"""`headgate newsletter run` as a process of its own, in a folder with settings."""

import os
import subprocess
import sys
from pathlib import Path

import internal_errors
from apps.newsletter.newsletter_stage import write_feeds

SRC = str(Path(__file__).parents[3] / "src")


def settings(folder: Path, base_url: str, *, items: int, more: str = "") -> Path:
    """A file of settings whose model `judge` is at this address."""
    folder.mkdir(parents=True, exist_ok=True)
    write_feeds(folder / "feeds", items)
    file = folder / "headgate.yaml"
    file.write_text(
        f"""
data_dir: {folder / "data"}
models:
  judge:
    upstreams: [{{provider: openai, model: judge-1, base_url: "{base_url}", api_key: k, slots: 5}}]
apps:
  newsletter: {{model: judge, feeds: {folder / "feeds" / "feeds.yaml"}, local_feeds: true, out: {folder / "out"}{more}}}
"""
    )
    return file


def start(*words: str, cwd: Path, **env: str) -> "subprocess.Popen[str]":
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.Popen(
        [sys.executable, "-m", "headgate", "newsletter", *words],
        cwd=cwd,
        env={**bare, "PYTHONPATH": SRC, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    internal_errors.read(err)
    return process.returncode, out, err
