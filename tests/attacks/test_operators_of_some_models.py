"""A key that may operate some models must not stop the others."""

import asyncio
import os
import sys
from typing import Any, Final

import pytest
from attacks.tenants import bearer
from attacks.test_names_of_others import looking
from server.http.front_stage import Play
from server.locked_stage import locked

MODELS: Final[dict[str, Any]] = {
    name: {"upstreams": [{"provider": "simulated", "latency_s": 0}]} for name in ("mine", "yours", "mind")
}
OTHERS: Final = ("yours", "simulated/*", "simulated/mine", "nobody", "*")


@pytest.mark.parametrize("deed", ["pause", "resume"])
def test_over_rest(play: Play, database: str, deed: str) -> None:
    async def scene() -> None:
        async with locked(models=MODELS, database=database) as gateway:
            boss = await gateway.key(name="boss", role="operate")
            some = await gateway.key(name="some", role="operate", models=("min*",))
            paused = {"mine", "yours"} if deed == "resume" else set()
            for model in paused:
                await gateway.post("/v1/models/pause", {"model": model}, bearer(boss))
            for model in OTHERS:
                answer = await gateway.post(f"/v1/models/{deed}", {"model": model}, bearer(some))
                assert (answer.status, answer.code) == (403, "model_not_allowed")
            assert set(gateway.house.gateway.routes.pauses) == paused
            answer = await gateway.post(f"/v1/models/{deed}", {"model": "mine"}, bearer(some))
            assert answer.status == 200
            called = await gateway.chat(boss, model="mine")
            assert called.status == (503 if deed == "pause" else 200)
            assert (await gateway.post(f"/v1/models/{deed}", {"model": "yours"}, bearer(boss))).status == 200

    play(scene)


@pytest.mark.parametrize("deed", ["pause", "resume"])
def test_on_the_dashboard(play: Play, deed: str) -> None:
    async def scene() -> None:
        async with locked(models=MODELS) as gateway:
            await gateway.key(name="boss", role="operate")
            some = await gateway.key(name="some", role="operate", models=("min*",))
            async with looking(gateway, some) as browser:
                form = {"origin": gateway.house.url, "content-type": "application/x-www-form-urlencoded"}
                for model in OTHERS:
                    told = await browser.post(
                        f"/models/{deed}", content=f"model={model.replace('*', '%2A')}", headers=form
                    )
                    assert told.status_code == 403
                assert gateway.house.gateway.routes.pauses == {}
                page = (await browser.get("/models")).text
                assert 'value="mine"' in page
                assert 'value="yours"' not in page
                told = await browser.post(f"/models/{deed}", content="model=mine", headers=form)
                assert told.status_code == 303

    play(scene)


def test_with_the_command(play: Play) -> None:
    async def scene() -> None:
        async with locked(models=MODELS) as gateway:
            await gateway.key(name="boss", role="operate")
            some = await gateway.key(name="some", role="operate", models=("min*",))
            for deed in ("pause", "resume"):
                for model, code in (("yours", 2), ("mine", 0)):
                    command = await asyncio.create_subprocess_exec(
                        sys.executable,
                        *("-m", "headgate", "models", deed, model, "--url", gateway.house.url),
                        env={**os.environ, "HEADGATE_API_KEY": some},
                        stdout=asyncio.subprocess.PIPE,
                        stderr=asyncio.subprocess.PIPE,
                    )
                    out, err = await command.communicate()
                    assert command.returncode == code, out + err
                    assert (b"may not use the model" in err) is (model == "yours")
            assert gateway.house.gateway.routes.pauses == {}

    play(scene)
