"""The HTTP page names every route that is served, every code with its status, and what may be said about a job."""

import re
from pathlib import Path

import msgspec
from server.error_matrix import MATRIX

from headgate.core.job import DeadLetter
from headgate.runner.submission import Submission
from headgate.server.errors import STATUS_BY_CODE

PAGE = (Path(__file__).parent.parent.parent / "docs/reference/http.md").read_text()


def test_every_route_is_named_with_its_method() -> None:
    """`MATRIX` holds all that are served: its own test says so."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `")]
    for route in MATRIX:
        method, path = route.replace(":path", "").split()
        named = [row for row in rows if f"{path}`" in row and f"`{method} " in row]
        assert named, route


def test_no_route_is_named_that_is_not_served() -> None:
    served = {route.replace(":path", "").split()[1] for route in MATRIX}
    named = set(re.findall(r"`(?:[A-Z]+ )?(/(?:v1|health|queue|metrics|api|openapi)[^`? ]*)", PAGE))
    assert {path for path in named if "…" not in path} - {"/v1/"} <= served


def test_every_code_stands_beside_its_status() -> None:
    rows = re.findall(r"^\| ([0-9, ]+) \| (.*) \|$", PAGE, flags=re.MULTILINE)
    for code, status in STATUS_BY_CODE.items():
        assert [row for numbers, row in rows if str(status) in numbers and f"`{code}`" in row], code


def test_all_that_can_be_said_about_a_job_and_all_of_its_record_is_named() -> None:
    words = set(re.findall(r"\w+", PAGE))
    fields = [field.name for kind in (Submission, DeadLetter) for field in msgspec.structs.fields(kind)]
    assert [name for name in fields if name not in words] == []
