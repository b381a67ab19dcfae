"""Takes everything in and says nothing: where slow clients sit while their own cost is measured. Run by `processes.started`."""

import asyncio
import sys

import uvloop


class Sink(asyncio.Protocol):
    """Reads and forgets."""

    def data_received(self, data: bytes) -> None:
        """Nothing is done with it."""


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Sink, "127.0.0.1", 0, backlog=2048)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    sys.exit(uvloop.run(serve()))
