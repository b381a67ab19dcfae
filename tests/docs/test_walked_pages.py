"""The tutorial and the how-tos: a reader who types what they say gets what they promise."""

from pathlib import Path

from docs.walked_pages import walk


def test_the_tutorial(tmp_path: Path) -> None:
    said = walk("tutorial.md", tmp_path)
    assert "worst case: 6 calls, 300 s" in said
    assert "idempotent-replayed: true" in said
    assert "permanent" in said
    assert "completed" in said
