"""The headers of an answer: read by name in any case, kept as they came."""

from collections.abc import Iterator, Mapping, Sequence

RawHeader = tuple[bytes, bytes]


class Headers(Mapping[str, str]):
    """A mapping over raw pairs. Names are lower-case; a header sent several times is joined by commas."""

    __slots__ = ("raw",)

    def __init__(self, raw: Sequence[RawHeader]) -> None:
        self.raw = raw

    def __getitem__(self, name: str) -> str:
        wanted = name.lower().encode("latin-1", "replace")
        found = [value for key, value in self.raw if key == wanted]
        if not found:
            raise KeyError(name)
        return b", ".join(found).decode("latin-1")

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(key.decode("latin-1") for key, _ in self.raw))

    def __len__(self) -> int:
        return len({key for key, _ in self.raw})

    def __repr__(self) -> str:
        """Names only: values may hold cookies and tokens."""
        return f"Headers({', '.join(self)})"
