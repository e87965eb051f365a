"""A development chain in a thread of its own, for tests of clients that block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.rpc import Server, serve_devchain


@dataclass
class Running:
    """A chain that is served. ``call`` runs something in its event loop."""

    chain: DevChain
    server: Server
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.server.url

    def call(self, work: Any) -> Any:
        """Run a function in the chain's loop and return its result."""

        async def run() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(10)

    def wait(self, work: Any) -> Any:
        """Await a coroutine in the chain's loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(10)


@contextmanager
def running_chain(block_time_s: float = 0.1, tempo_blocks: int = 10) -> Iterator[Running]:
    """A chain with timer blocks until the block ends."""
    chain = DevChain(DevChainConfig(block_time_s=block_time_s, tempo_blocks=tempo_blocks))
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    box: list[Server] = []

    async def serve() -> None:
        async with serve_devchain(chain) as server:
            box.append(server)
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield Running(chain, box[0], loop)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
