"""Ids: drawn many at a time, and yet nobody ever gets one twice."""

import re
import subprocess
import sys

from headgate.machine.ids import random_id

FORK = """
import os
from headgate.machine.ids import random_id
random_id()
reader, writer = os.pipe()
child = os.fork()
drawn = "".join(random_id() for _ in range(200))
if not child:
    os.write(writer, drawn.encode())
    os._exit(0)
os.waitpid(child, 0)
theirs = os.read(reader, 100_000).decode()
assert len(drawn) == len(theirs) == 200 * 32
assert not {drawn[i:i + 32] for i in range(0, 6400, 32)} & {theirs[i:i + 32] for i in range(0, 6400, 32)}
"""


def test_an_id_is_32_hex_digits_and_comes_once() -> None:
    ids = [random_id() for _ in range(10_000)]

    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in ids)


def test_a_forked_child_does_not_draw_what_its_parent_draws() -> None:
    """What was drawn in advance would otherwise be handed out on both sides."""
    subprocess.run([sys.executable, "-c", FORK], check=True)
