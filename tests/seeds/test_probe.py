from typing import Any
from jobstage import JobStages, on_each_database
import headgate, asyncio
@headgate.task("echo")
async def echo(ctx: Any, given: Any) -> Any:
    if given == "f": raise ValueError("x")
    await asyncio.sleep(100)
    return given
@on_each_database
async def test_it(stages: JobStages) -> None:
    s = await stages.open(tasks=[echo])
    assert (await s.ended(echo, 1)).result == 1
    assert (await s.ended(echo, "f")).reason == "exhausted"
    print("A", flush=True)
    t = await stages.open(tasks=[echo])
    print("B", flush=True)
    hs = [await t.submit(echo, n) for n in range(100)]
    print("C", flush=True)
    for h in hs: await h.wait()
    print(stages.now)
