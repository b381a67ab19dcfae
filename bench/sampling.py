"""Where headgate spends its processor time: its stack, looked at again and again, which costs it next to nothing.

Run: python bench/sampling.py FILE serve …, as one would run `headgate serve …`; FILE gets the table when it ends.
"""

import atexit
import signal
import sys
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType

from headgate.cli import main

EVERY_S = 0.001


class Samples:
    """Counts, for each function, how often it ran (`own`) and how often it was on the stack (`all`)."""

    def __init__(self) -> None:
        self._own: Counter[CodeType] = Counter()
        self._all: Counter[CodeType] = Counter()
        self._taken = 0

    def begin(self, file: Path) -> None:
        """From now on; the table is written when the process ends."""
        signal.signal(signal.SIGPROF, self._look)
        signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)
        atexit.register(self._write, file)

    def _look(self, _signal: int, frame: FrameType | None) -> None:
        if frame is None:
            return
        self._taken += 1
        self._own[frame.f_code] += 1
        seen = set()
        while frame is not None:
            seen.add(frame.f_code)
            frame = frame.f_back
        self._all.update(seen)

    def _write(self, file: Path) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        lines = [f"{self._taken} samples; own and all in percent of them"]
        for code, count in self._all.most_common():
            own, whole = self._own[code] / self._taken, count / self._taken
            where = "/".join(Path(code.co_filename).parts[-3:])
            lines.append(f"{own:7.1%} {whole:7.1%}  {code.co_qualname}  {where}:{code.co_firstlineno}")
        file.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    Samples().begin(Path(sys.argv[1]))
    sys.argv[:2] = ["headgate"]
    main()
