"""A raw JSON-RPC client of the development chain, and a stepped chain behind a socket for it to talk to."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.rpc import Server, serve_devchain
from tests.unit.devchain_actors import BOB, DAVE, transfer

WITHIN_S = 10.0


class Refusal(Exception):
    """A JSON-RPC error."""


class Client:
    """A raw connection. ``heard``: notifications by subscription, in order"""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.ids = itertools.count(1)
        self.heard: dict[str, asyncio.Queue[Any]] = defaultdict(asyncio.Queue)
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.order: list[str] = []

    async def read(self) -> None:
        async for message in self.socket:
            frame = json.loads(message)
            if "method" in frame:
                self.order.append("notification")
                self.heard[frame["params"]["subscription"]].put_nowait(frame["params"]["result"])
            else:
                self.order.append("answer")
                self.answers.pop(frame["id"]).set_result(frame)

    async def ask(self, method: str, *params: Any) -> Any:
        number = next(self.ids)
        answer = self.answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        frame = await asyncio.wait_for(answer, WITHIN_S)
        if "error" in frame:
            raise Refusal(f"{frame['error']['code']} {frame['error']['message']}")
        return frame["result"]

    async def hear(self, subscription: str) -> Any:
        return await asyncio.wait_for(self.heard[subscription].get(), WITHIN_S)

    async def heads(self, kind: str) -> str:
        """A subscription, past the head that it begins with."""
        subscription = await self.ask(f"chain_subscribe{kind}Heads")
        await self.hear(subscription)
        return str(subscription)

    def is_silent(self, subscription: str) -> bool:
        return self.heard[subscription].empty()


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Client]:
    async with connect(server.url) as socket:
        client = Client(socket)
        reader = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)


def stepped(story: Callable[[DevChain, Server, Client], Awaitable[None]], history: int = 50) -> None:
    """Runs a story on a chain that makes blocks only on request."""

    async def run() -> None:
        clock = itertools.count(1_700_000_000_000, 250)
        chain = DevChain(DevChainConfig(history_blocks=history), lambda: next(clock))
        async with serve_devchain(chain, auto=False) as server, client_of(server) as client:
            await story(chain, server, client)

    asyncio.run(run())


async def watched(chain: DevChain, client: Client, rao: int = 1000) -> str:
    raw = "0x" + BOB.signed(chain, transfer(DAVE, rao)).hex()
    return str(await client.ask("author_submitAndWatchExtrinsic", raw))
