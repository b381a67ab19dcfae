"""What pages are built of: tables, badges, tiles, and what to say when there is nothing."""

from collections.abc import Iterable, Sequence

from headgate.server.dashboard.html import Child, Markup, el


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Child]], *, numeric: frozenset[int] = frozenset()
) -> Markup:
    """On narrow screens each row becomes a card, and its cells carry their heads. `numeric` columns stand right."""
    shown = [
        el(
            "tr",
            [
                el("td", cell, data_label=head or None, class_="num" if index in numeric else None)
                for index, (head, cell) in enumerate(zip(heads, row, strict=True))
            ],
        )
        for row in rows
    ]
    top = el(
        "tr",
        [
            el("th", head, scope="col", class_="num" if index in numeric else None)
            for index, head in enumerate(heads)
        ],
    )
    return el("table", el("thead", top), el("tbody", shown))


def badge(words: str, tone: str = "plain") -> Markup:
    """`tone`: good, warn, bad or plain. The words say it, too: colour alone tells nobody."""
    return el("span", words, class_=f"badge {tone}")


def empty(words: str, *what_to_do: Child) -> Markup:
    """Nothing is here, and what to do about it."""
    return el("div", el("p", words), el("p", what_to_do) if what_to_do else None, class_="empty")


def tile(label: str, value: Child, note: Child = None, *, tone: str | None = None) -> Markup:
    """One number."""
    return el(
        "div",
        el("dt", label),
        el("dd", value, class_="value"),
        None if note is None else el("dd", note, class_="note"),
        class_="tile" if tone is None else f"tile {tone}",
    )


def tiles(*shown: Child) -> Markup:
    return el("dl", shown, class_="tiles")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Names and values of one thing. Values that are None are left out."""
    return el(
        "dl",
        [el("div", el("dt", name), el("dd", value)) for name, value in pairs if value is not None],
        class_="facts",
    )


def heading(words: str, *beside: Child) -> Markup:
    return el("div", el("h2", words), beside, class_="heading")


def prose(words: str) -> Child:
    """Sentences with `commands` in them."""
    return [el("code", piece) if odd % 2 else piece for odd, piece in enumerate(words.split("`"))]
