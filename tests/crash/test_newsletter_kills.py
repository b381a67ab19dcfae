"""Kill the newsletter again and again in the middle of judging: each item gets its verdict, and hardly one is paid for twice."""

import os
import random
import time
from pathlib import Path

import pytest
from apps.newsletter.judge_server import JudgeServer, judging
from apps.newsletter.newsletter_process import finish, settings, start

KILLS = min(20, int(os.environ.get("HEADGATE_CRASH_ROUNDS", "5")))
SEED = int(os.environ.get("HEADGATE_CRASH_SEED", "7"))
ITEMS = 120
PARALLEL = 5
RUN = ("run", "--run-id", "r1", "--config")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> dict[str, str]:
    """As an environment: that of a Lambda, with a PostgreSQL that outlives it, among others."""
    if request.param == "sqlite":
        return {}
    return {"DATABASE_URL": str(request.getfixturevalue("postgres_url"))}


def _kill_in_the_middle(
    config: Path, server: JudgeServer, chance: random.Random, database: dict[str, str]
) -> bool:
    """Whether it was killed; a run that is faster than we are ends by itself."""
    until = server.calls + chance.randint(0, ITEMS // KILLS)
    with start(*RUN, str(config), cwd=config.parent, **database) as process:
        while server.calls < until and process.poll() is None:
            time.sleep(0.005)
        # The one place that sleeps: the moment must fall anywhere.
        time.sleep(chance.random() * 0.05)
        process.kill()
        process.communicate()
    return process.returncode == -9


def test_killed_runs_go_on_pay_at_most_for_what_was_in_flight_and_end_with_the_same_mail(
    tmp_path: Path, database: dict[str, str]
) -> None:
    chance = random.Random(SEED)
    with judging(latency_s=0.02) as server:
        config = settings(tmp_path / "disturbed", server.base_url, items=ITEMS)
        kills = sum(_kill_in_the_middle(config, server, chance, database) for _ in range(KILLS))
        code, out, err = finish(start(*RUN, str(config), cwd=config.parent, **database))
        assert (code, kills) == (0, KILLS), err
        assert f"items: {ITEMS} judged, 0 without a verdict, 0 skipped" in out
        assert len(server.asked) == ITEMS
        assert server.calls <= ITEMS + kills * PARALLEL
    with judging() as server:
        calm = settings(tmp_path / "undisturbed", server.base_url, items=ITEMS)
        assert finish(start(*RUN, str(calm), cwd=calm.parent))[0] == 0
        assert server.calls == ITEMS
    for name in ("r1.txt", "r1.html"):
        ours, theirs = (tmp_path / which / "out" / name for which in ("disturbed", "undisturbed"))
        assert ours.read_text() == theirs.read_text()
