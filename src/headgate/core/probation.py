"""Blocked for a while, then one probe at a time; each failed probe blocks longer.

The breaker and the hold on misconfigured upstreams both end this way; they differ in what starts it.
"""


class Probation:
    """Knows until when nobody may pass, and whether a probe is out."""

    __slots__ = ("_block_s", "first_s", "longest_s", "probing", "until")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self.first_s = first_s
        self.longest_s = longest_s
        self.until: float | None = None
        self.probing = False
        self._block_s = first_s

    @property
    def active(self) -> bool:
        return self.until is not None

    def blocks(self, now: float) -> bool:
        return self.until is not None and (self.probing or now < self.until)

    def start(self, now: float) -> None:
        self._block_s = self.first_s
        self.until = now + self._block_s

    def send_probe(self) -> None:
        self.probing = True

    def probe_failed(self, now: float) -> None:
        self.probing = False
        self._block_s = min(self._block_s * 2, self.longest_s)
        self.until = now + self._block_s

    def probe_told_nothing(self) -> None:
        """The probe was cancelled or ended neutrally: the next caller probes again."""
        self.probing = False

    def end(self) -> None:
        self.until = None
        self.probing = False
