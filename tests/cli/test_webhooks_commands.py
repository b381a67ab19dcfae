"""`headgate webhooks` as an operator meets it."""

import asyncio

import pytest
from cli.command_stage import PATIENCE_S, SETTINGS, TASKS, Desk
from standardwebhooks.webhooks import Webhook

import headgate
from headgate.core.webhook_wire import secret_mistake

RULES = "webhooks: {allow_private: true}\n"


@pytest.fixture
def told(desk: Desk) -> str:
    """The id of a job whose end was told, to an address that nobody answers at: its delivery waits."""
    (desk.folder / "headgate.yaml").write_text(SETTINGS + RULES)

    async def run() -> str:
        settings = {"data_dir": "data", "webhooks": {"allow_private": True}}
        async with headgate.open(settings, env={}, tasks=TASKS, work=True) as gateway:
            handle = await gateway.jobs.submit("echo", {"n": 1}, webhook="http://127.0.0.1:9/hook")
            await handle.wait(PATIENCE_S)
            (delivery,) = await gateway.webhooks.list()
            while not (await gateway.jobs.get(delivery.id)).history:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
        return handle.id

    return asyncio.run(run())


def test_the_secret_stands_alone_on_stdout_and_is_the_tenant_s(desk: Desk) -> None:
    """So that it can be piped into a receiver's own settings."""
    mine, again, theirs = (
        desk.run("webhooks", "secret", *more).out.removesuffix("\n")
        for more in ((), (), ("--tenant", "acme"))
    )
    assert mine == again != theirs
    assert secret_mistake(mine) is None
    Webhook(mine)  # The official library takes it.


def test_a_rotated_secret_is_another_one_of_the_same_tenant(desk: Desk) -> None:
    def shown(*command: str) -> str:
        return desk.run("webhooks", *command).out.removesuffix("\n")

    old, theirs, alerts = shown("secret"), shown("secret", "--tenant", "acme"), shown("secret", "--alerts")
    new = shown("rotate")
    assert secret_mistake(new) is None
    assert shown("secret") == new != old
    assert shown("secret", "--tenant", "acme") == theirs
    assert shown("secret", "--alerts") == alerts != shown("rotate", "--alerts")


def test_it_says_when_the_settings_have_one_of_their_own(desk: Desk) -> None:
    own = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
    (desk.folder / "headgate.yaml").write_text(SETTINGS + f"webhooks: {{secret: '{own}'}}\n")
    answer = desk.run("webhooks", "secret")
    assert answer.code == 0
    assert "webhooks.secret of the settings" in answer.err
    assert own not in answer.out + answer.err


def test_deliveries_are_listed_and_made_again(desk: Desk, told: str) -> None:
    [delivery] = desk.run("webhooks", "list", "--json").json["data"]
    assert delivery["metadata"]["subject"] == told
    assert delivery["metadata"]["event"] == "job.completed"
    heading, row = desk.run("webhooks", "list").out.splitlines()
    assert heading.split() == ["id", "event", "of", "state", "try", "age", "reason"]
    assert row.split()[:5] == [delivery["id"], "job.completed", told, "pending", "1/10"]
    assert "transient: http://127.0.0.1:9 " in row, "and why it waits"

    for named in (told, delivery["id"]):
        answer = desk.run("webhooks", "redeliver", named)
        assert answer.code == 0, answer.err
        assert answer.out.endswith(" delivers it again\n")
    page = desk.run("webhooks", "list", "--json", "--limit", "2").json
    assert (len(page["data"]), page["has_more"]) == (2, True)
    [rest] = desk.run("webhooks", "list", "--json", "--after", page["last_id"]).json["data"]
    found = [*page["data"], rest]
    assert len({one["id"] for one in found}) == 3
    assert {one["metadata"]["webhook_id"] for one in found} == {delivery["metadata"]["webhook_id"]}


def test_what_cannot_be_is_told_with_exit_code_2(desk: Desk, told: str) -> None:
    for words, expected in (
        (("redeliver", "job_019c13a1b2c3d4e5f6"), "there is no job"),
        (("redeliver", told, "--tenant", "acme"), "there is no job"),
        (("enable", "http://127.0.0.1:9/hook"), "is not disabled"),
    ):
        answer = desk.run("webhooks", *words)
        assert answer.code == 2
        assert expected in answer.err
    assert desk.run("webhooks", "list", "--tenant", "acme").out == "There are no deliveries.\n"
