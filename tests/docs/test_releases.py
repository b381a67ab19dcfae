"""What is released: one version everywhere, installation commands that work, and an image built from what it needs."""

import json
import os
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest
from docs.walked_pages import free_port

import headgate

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONTAINERFILE = (ROOT / "deploy/Containerfile").read_text()
TEXTS = [
    *(ROOT / "src").rglob("*.py"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "ops").glob("*.md"),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


# ---- The version -----------------------------------------------------------------------------------------------------


def test_the_newest_heading_of_the_changelog_is_the_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == PROJECT["version"]
    assert len(set(headings)) == len(headings)


def test_the_command_the_package_and_the_project_agree_on_the_version() -> None:
    command = [sys.executable, "-m", "headgate", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == f"headgate {PROJECT['version']}\n"
    assert headgate.__version__ == PROJECT["version"]


# ---- Installing ------------------------------------------------------------------------------------------------------


def test_no_page_and_no_message_installs_headgate_from_an_index() -> None:
    """It is not published: `pip install headgate` finds nothing."""
    wrong = re.compile(r"pip install '?\"?headgate")
    assert [str(path.relative_to(ROOT)) for path in TEXTS if wrong.search(path.read_text())] == []


def test_every_extra_that_is_named_exists() -> None:
    named = {
        extra.strip()
        for path in TEXTS
        for extras in re.findall(r"pip install '\.\[([^\]{]+)\]'", path.read_text())
        for extra in extras.split(",")
    }
    missing = {
        extra
        for path in TEXTS
        for extra in re.findall(r'missing_extra\("[^"]+", "([^"]+)"\)', path.read_text())
    }
    assert named
    assert missing
    assert named | missing <= set(PROJECT["optional-dependencies"])


# ---- The image -------------------------------------------------------------------------------------------------------


def _sent(path: str) -> bool:
    """Whether a file of this folder is sent to the builder: the last pattern that matches it, or a folder above it, decides."""
    sent = True
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        pattern = line.removeprefix("!").removeprefix("**/")
        parts = path.split("/")
        above = ["/".join(parts[: length + 1]) for length in range(len(parts))]
        if line.removeprefix("!").startswith("**/"):
            above = ["/".join(parts[start:end]) for end in range(1, len(parts) + 1) for start in range(end)]
        if any(fnmatch(one, pattern) and one.count("/") == pattern.count("/") for one in above):
            sent = line.startswith("!")
    return sent


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".git/config",
        ".headgate/headgate.db",
        ".hypothesis/examples/1",
        ".mypy_cache/3.11/cache.db",
        ".ruff_cache/1",
        ".venv/bin/python",
        "headgate.yaml",
        "src/headgate/__pycache__/gateway.cpython-313.pyc",
        "tests/conftest.py",
    ],
)
def test_the_image_is_built_without(path: str) -> None:
    assert not _sent(path)


def test_the_image_is_built_with_all_that_the_package_needs() -> None:
    """What pyproject.toml and the Containerfile name, and every file of the package."""
    named = re.findall(r"/src/([\w./-]+)", CONTAINERFILE)
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()]
    package = [path for path in files if "__pycache__" not in path]
    needed = ["pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], *named, *package]
    assert [path for path in needed if not _sent(path)] == []
    assert all((ROOT / name).exists() for name in named)


def test_everything_in_the_image_comes_from_the_hashed_lock() -> None:
    installed = [line for line in CONTAINERFILE.splitlines() if "pip install" in line]
    assert installed
    assert all(
        "--require-hashes" in line or ("--no-deps" in line and "--no-index" in line) for line in installed
    )
    found = re.search(r"/src/(requirements/\S+\.lock)", CONTAINERFILE)
    assert found is not None
    locked = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / found[1]).read_text(), re.MULTILINE))
    extras = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *extras["postgres"], *extras["bedrock"]]
    names = [re.split(r"[<>=;\[ ]", requirement)[0] for requirement in wanted]
    assert [name for name in names if name not in locked] == []
    base = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "requirements/run.lock").read_text(), re.MULTILINE))
    assert {name: locked.get(name) for name in base} == base


def _run(words: list[str], settings: Path, env: dict[str, str]) -> "subprocess.Popen[str]":
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return subprocess.Popen(
        words,
        cwd=settings.parent,
        env={**kept, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _health_check(settings: Path, env: dict[str, str]) -> int:
    """The image's health check, run here and with these settings in the place of the image's."""
    found = re.search(r"HEALTHCHECK (?:--\S+ )*CMD (\[.*\])", CONTAINERFILE)
    assert found is not None
    python, *words = (
        word.replace("/etc/headgate/headgate.yaml", str(settings)) for word in json.loads(found[1])
    )
    assert python == "/opt/headgate/bin/python"
    process = _run([sys.executable, *words], settings, env)
    process.communicate(timeout=60)
    return process.returncode


@pytest.mark.parametrize("by", ["the settings", "the environment"])
def test_the_image_s_health_check_follows_the_port(by: str, tmp_path: Path) -> None:
    port, other = free_port(), free_port()
    settings = tmp_path / "headgate.yaml"
    named = by == "the settings"
    settings.write_text(f"listen: 127.0.0.1:{port if named else other}\n")
    env = {} if named else {"HEADGATE__LISTEN": f"127.0.0.1:{port}"}
    server = _run([sys.executable, "-m", "headgate", "serve", "--config", str(settings)], settings, env)
    try:
        assert server.stdout is not None
        assert f":{port}" in server.stdout.readline()
        alive = _health_check(settings, env)
    finally:
        server.terminate()
        server.communicate(timeout=60)
    assert (alive, _health_check(settings, env)) == (0, 1)
