"""The chain behind a websocket: JSON-RPC 2.0 requests, batches and subscriptions, and a timer that produces blocks.

One task reads and one writes per connection; answers and notifications leave in the order in which they came about. A
client that does not read is cut off rather than allowed to fill the memory. Frames over MAX_FRAME_BYTES are refused by
the websocket layer.

Source: JSON-RPC 2.0; subscription frames as substrate's servers send them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from subnet.localnet.devchain.blocks import Block
from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.rpc_methods import Methods, RpcError, header

MAX_FRAME_BYTES = 1 << 24
MAX_QUEUED_FRAMES = 4096
ABNORMAL_CLOSURE = 1006  # never sent; stands for a connection that ends without a closing handshake (RFC 6455)
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
HEADS = ("chain_newHead", "chain_finalizedHead")

logger = logging.getLogger(__name__)


class Connection:
    """One client: its subscriptions and what is still to be sent to it."""

    def __init__(self, socket: ServerConnection, methods: Methods) -> None:
        self.socket = socket
        self.methods = methods
        self.topics: dict[str, str] = {}
        self.ids = itertools.count(1)
        self.outgoing: asyncio.Queue[str] = asyncio.Queue(MAX_QUEUED_FRAMES)

    def send(self, frame: Any) -> None:
        try:
            self.outgoing.put_nowait(json.dumps(frame))
        except asyncio.QueueFull:
            logger.warning("a client does not read: cut off")
            self.socket.transport.abort()

    def subscribe(self, topic: str) -> str:
        subscription = f"{id(self):x}-{next(self.ids)}"
        self.topics[subscription] = topic
        return subscription

    def unsubscribe(self, subscription: str) -> bool:
        return self.topics.pop(subscription, None) is not None

    def notifier(self, subscription: str, method: str) -> Callable[[Any], None]:
        def notify(result: Any) -> None:
            if subscription in self.topics and not self.methods.chain.faults.silent:
                params = {"subscription": subscription, "result": result}
                self.send({"jsonrpc": "2.0", "method": method, "params": params})

        return notify

    def on_block(self, block: Block) -> None:
        for subscription, topic in list(self.topics.items()):
            if topic in HEADS:
                self.notifier(subscription, topic)(header(block))

    def answer(self, request: Any) -> dict[str, Any]:
        if not isinstance(request, dict) or not isinstance(request.get("method"), str):
            return self.error(None, RpcError(INVALID_REQUEST, "Invalid Request"))
        params = request.get("params") or []
        if not isinstance(params, list):
            return self.error(request.get("id"), RpcError(INVALID_REQUEST, "Invalid Request: params by position only"))
        try:
            result = self.methods.call(request["method"], params, self)
        except RpcError as error:
            return self.error(request.get("id"), error)
        return {"jsonrpc": "2.0", "id": request.get("id"), "result": result}

    @staticmethod
    def error(request_id: Any, error: RpcError) -> dict[str, Any]:
        body = {"code": error.code, "message": error.message}
        if error.data is not None:
            body["data"] = error.data
        return {"jsonrpc": "2.0", "id": request_id, "error": body}

    def receive(self, message: str | bytes) -> None:
        try:
            request = json.loads(message)
        except ValueError:
            self.send(self.error(None, RpcError(PARSE_ERROR, "Parse error")))
            return
        is_ours = isinstance(request, dict) and str(request.get("method")).startswith("devchain_")
        if self.methods.chain.faults.silent and not is_ours:
            return
        self.send([self.answer(item) for item in request] if isinstance(request, list) else self.answer(request))

    async def write(self) -> None:
        while True:
            await self.socket.send(await self.outgoing.get())


class Server:
    """A served chain. url: where; faults: its switches; producer: the timer's task, None without a timer"""

    def __init__(self, chain: DevChain) -> None:
        self.chain = chain
        self.faults = chain.faults
        self.methods = Methods(chain)
        self.connections: set[Connection] = set()
        self.url = ""
        self.producer: asyncio.Task[None] | None = None

    async def handle(self, socket: ServerConnection) -> None:
        connection = Connection(socket, self.methods)
        self.connections.add(connection)
        self.chain.listeners.append(connection.on_block)
        writer = asyncio.create_task(connection.write())
        try:
            async for message in socket:
                connection.receive(message)
        except ConnectionClosed:
            logger.debug("a client went away without a closing handshake")
        finally:
            self.chain.listeners.remove(connection.on_block)
            self.connections.discard(connection)
            writer.cancel()
            with suppress(asyncio.CancelledError, ConnectionClosed):
                await writer

    async def close_connections(self, code: int) -> None:
        """Ends every connection with a websocket close code; ABNORMAL_CLOSURE cuts them off."""
        for connection in list(self.connections):
            if code == ABNORMAL_CLOSURE:
                connection.socket.transport.abort()
            else:
                await connection.socket.close(code)

    async def produce_blocks(self) -> None:
        """A block per block time; late ones are not made up for."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self.chain.config.block_time_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if not self.faults.stalled:
                self.chain.produce()


@asynccontextmanager
async def serve_devchain(
    chain: DevChain, host: str = "127.0.0.1", port: int = 0, auto: bool = True
) -> AsyncIterator[Server]:
    """port: 0 for any free one, see `url`; auto: blocks by timer, else only by `chain.produce()`.

    An error of the timer's task is raised at the end of the block.
    """
    server = Server(chain)
    async with serve(server.handle, host, port, max_size=MAX_FRAME_BYTES, close_timeout=1) as listening:
        address = next(iter(listening.sockets)).getsockname()
        server.url = f"ws://{host}:{address[1]}"
        if auto:
            server.producer = asyncio.create_task(server.produce_blocks())
        try:
            yield server
        finally:
            if server.producer is not None:
                server.producer.cancel()
                with suppress(asyncio.CancelledError):
                    await server.producer
