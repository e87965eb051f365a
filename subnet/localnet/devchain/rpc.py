"""The chain behind a websocket: JSON-RPC 2.0 requests, batches and subscriptions, and a timer that produces blocks.

One task reads and one writes per connection; answers and notifications leave in the order in which they came about. A
client that does not read is cut off rather than allowed to fill the memory, and so is one that never unsubscribes.
Frames over MAX_FRAME_BYTES are refused by the websocket layer.

Source: JSON-RPC 2.0; subscription frames as substrate's servers send them.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from subnet.localnet.devchain.blocks import Block
from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.rpc_methods import INVALID_PARAMS, Methods, RpcError, Session, header

MAX_FRAME_BYTES = 1 << 24
MAX_QUEUED_FRAMES = 4096
MAX_QUEUED_BYTES = 1 << 26
ABNORMAL_CLOSURE = 1006  # never sent; stands for a connection that ends without a closing handshake (RFC 6455)
MAX_SUBSCRIPTIONS = 1024  # per connection, substrate's default
TOO_MANY_SUBSCRIPTIONS = -32006
PARSE_ERROR = -32700
INVALID_REQUEST = -32600
CLOSE_CODES = {1000, 1001, ABNORMAL_CLOSURE, 1011, 1012, 1013}  # what endpoints and the proxies before them send

logger = logging.getLogger(__name__)


class Connection:
    """One client: its subscriptions and what is still to be sent to it."""

    def __init__(self, socket: ServerConnection, methods: Methods) -> None:
        self.socket = socket
        self.methods = methods
        self.topics: dict[str, str] = {}
        self.ids = itertools.count(1)
        self.outgoing: deque[tuple[float, str]] = deque()  # when a frame may leave, by the loop's clock, and the frame
        self.outgoing_bytes = 0
        self.has_outgoing = asyncio.Event()
        self.after_answer: list[Callable[[], None]] = []

    def send(self, frame: Any) -> None:
        text = json.dumps(frame)
        if len(self.outgoing) >= MAX_QUEUED_FRAMES or self.outgoing_bytes + len(text) > MAX_QUEUED_BYTES:
            logger.warning("a client does not read: cut off")
            self.socket.transport.abort()
            return
        self.outgoing.append((asyncio.get_running_loop().time() + self.methods.faults.lag_s, text))
        self.outgoing_bytes += len(text)
        self.has_outgoing.set()

    def subscribe(self, topic: str) -> str:
        if len(self.topics) >= MAX_SUBSCRIPTIONS:
            raise RpcError(TOO_MANY_SUBSCRIPTIONS, "Too many subscriptions on the connection")
        subscription = f"{id(self):x}-{next(self.ids)}"
        self.topics[subscription] = topic
        return subscription

    def unsubscribe(self, subscription: str) -> bool:
        return self.topics.pop(subscription, None) is not None

    def notifier(self, subscription: str, method: str) -> Callable[[Any], None]:
        def notify(result: Any) -> None:
            if subscription in self.topics and not self.methods.faults.silent:
                params = {"subscription": subscription, "result": result}
                self.send({"jsonrpc": "2.0", "method": method, "params": params})

        return notify

    def later(self, action: Callable[[], None]) -> None:
        self.after_answer.append(action)

    def on_block(self, block: Block) -> None:
        self.tell_head("chain_newHead", block)

    def on_final(self, block: Block) -> None:
        self.tell_head("chain_finalizedHead", block)

    def tell_head(self, head: str, block: Block) -> None:
        for subscription, topic in list(self.topics.items()):
            if topic == head:
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
        if self.methods.faults.silent and not is_ours:
            return
        self.send([self.answer(item) for item in request] if isinstance(request, list) else self.answer(request))

        actions, self.after_answer = self.after_answer, []
        for action in actions:
            action()

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self.outgoing:
                due, frame = self.outgoing[0]
                if due > loop.time():
                    await asyncio.sleep(due - loop.time())
                await self.socket.send(frame)
                self.outgoing.popleft()
                self.outgoing_bytes -= len(frame)
            self.has_outgoing.clear()
            await self.has_outgoing.wait()


class Server:
    """A served chain. url: where; faults: its switches; producer: the timer's task, None without a timer"""

    def __init__(self, chain: DevChain) -> None:
        self.chain = chain
        self.faults = chain.faults
        self.methods = Methods(chain)
        self.methods.session_table["devchain_close"] = self.close_others
        self.connections: set[Connection] = set()
        self.closing: set[asyncio.Task[None]] = set()
        self.url = ""
        self.producer: asyncio.Task[None] | None = None

    async def handle(self, socket: ServerConnection) -> None:
        connection = Connection(socket, self.methods)
        self.connections.add(connection)
        self.chain.listeners.append(connection.on_block)
        self.chain.finality_listeners.append(connection.on_final)
        writer = asyncio.create_task(connection.write())
        try:
            async for message in socket:
                connection.receive(message)
        except ConnectionClosed:
            logger.debug("a client went away without a closing handshake")
        finally:
            self.chain.listeners.remove(connection.on_block)
            self.chain.finality_listeners.remove(connection.on_final)
            self.connections.discard(connection)
            connection.topics.clear()  # the pool may still hold watchers of this connection
            writer.cancel()
            with suppress(asyncio.CancelledError, ConnectionClosed):
                await writer

    async def close_connections(self, code: int) -> None:
        """Ends every connection with a websocket close code; ABNORMAL_CLOSURE cuts them off."""
        await asyncio.gather(*(self.close(connection, code) for connection in list(self.connections)))

    @staticmethod
    async def close(connection: Connection, code: int) -> None:
        if code == ABNORMAL_CLOSURE:
            connection.socket.transport.abort()
        else:
            await connection.socket.close(code)

    def close_others(self, session: Session, code: int) -> int:
        """Ends every connection but the one that asks, which thereby gets its answer; returns how many."""
        if code not in CLOSE_CODES:
            raise RpcError(INVALID_PARAMS, f"Invalid params: the codes are {sorted(CLOSE_CODES)}")
        others = [connection for connection in self.connections if connection is not session]
        for connection in others:
            task = asyncio.create_task(self.close(connection, code))
            self.closing.add(task)
            task.add_done_callback(self.closing.discard)
        return len(others)

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
