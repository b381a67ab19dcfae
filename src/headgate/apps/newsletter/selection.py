"""Which of the judged items are mailed, and in which order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headgate.apps.newsletter.contract import Label
from headgate.apps.newsletter.items import DomainCap, Item
from headgate.apps.newsletter.verdicts import Outcome, Verdict

_RANK = {label: rank for rank, label in enumerate(Label)}


@dataclass(frozen=True, slots=True)
class Selected:
    """An item with the verdict that brought it here."""

    item: Item
    verdict: Verdict

    @property
    def about(self) -> str:
        """Where it is from, of which day, and its tags."""
        published = self.item.published
        day = [] if published is None else [f"{published.day} {published:%b %Y}"]
        return " · ".join(
            [self.item.source or self.item.domain, *day, *(f"#{tag}" for tag in self.verdict.tags)]
        )


def select(
    items: Sequence[Item], verdicts: Mapping[str, Verdict], *, most: int, per_domain: int
) -> list[Selected]:
    """The most important first, then the surest, then in the order of the items; never what is to be ignored."""
    judged = [Selected(item, verdicts[item.id]) for item in items if item.id in verdicts]
    wanted = [
        one
        for one in judged
        if one.verdict.outcome is Outcome.OK and one.verdict.interest_label is not Label.IGNORE
    ]
    wanted.sort(key=lambda one: (_RANK[one.verdict.interest_label], -one.verdict.confidence))
    cap = DomainCap(per_domain)
    return [one for one in wanted if cap.admits(one.item)][:most]
