"""The page in Prometheus' text format 0.0.4, written by ourselves.

prometheus-client checks every name and label again for every sample: twenty models took it 115 ms, in the event loop.
Names and labels are our own here, and their text is kept.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

Key = tuple[str, ...]
"""The values of a metric's labels."""
K = TypeVar("K", bound=Key)
Tell = Callable[[], "Family"]
"""Makes a metric when the page is asked for."""


class Family(NamedTuple):
    """One metric with all its samples, each a line."""

    name: str
    kind: str
    words: str
    labels: tuple[str, ...]
    lines: list[str]


def page(families: Iterable[Family]) -> str:
    parts: list[str] = []
    for name, kind, words, _, lines in families:
        parts += (f"# HELP {name} {words}\n# TYPE {name} {kind}\n", *lines)
    return "".join(parts)


def label_text(labels: tuple[str, ...], values: Key) -> str:
    """`{model="m",lane="batch"}`; nothing where there are no labels."""
    if not labels:
        return ""
    pairs = (f'{label}="{_escaped(value)}"' for label, value in zip(labels, values, strict=True))
    return f"{{{','.join(pairs)}}}"


def gauge(name: str, words: str, labels: tuple[str, ...], numbers: Mapping[K, float]) -> Family:
    lines = [f"{name}{label_text(labels, key)} {number:.15g}\n" for key, number in numbers.items()]
    return Family(name, "gauge", words, labels, lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
