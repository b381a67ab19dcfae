"""Out of the box: the settings list the summariser, and one process serves it and runs its jobs."""

import asyncio
from pathlib import Path

import httpx

from headgate import wiring
from headgate.wiring.serving import serve

CONTENT = "The council has met on Monday and has decided to mend the old bridge within the year. " * 3


def test_an_article_goes_all_the_way_on_the_simulated_model(tmp_path: Path) -> None:
    settings = wiring.read_settings(
        {"listen": "127.0.0.1:0", "data_dir": str(tmp_path), "apps": {"articles": {}}}, env={}
    )
    article = {"article_id": "a1", "content": CONTENT}

    async def main() -> None:
        async with serve(settings) as served, httpx.AsyncClient(base_url=served.url, timeout=20) as client:
            queued = (await client.post("/api/v1/summarize/queue", json=article)).json()
            await client.get(f"/v1/jobs/{queued['job_id']}?wait=10")
            status = (await client.get(f"/api/v1/summarize/status/{queued['job_id']}")).json()
            assert (status["status"], status["article_id"]) == ("completed", "a1")
            now = await client.post("/api/v1/summarize", json={**article, "article_id": "a2"})
            assert (now.status_code, now.json()["model"]) == (200, "simulated")

    asyncio.run(main())
