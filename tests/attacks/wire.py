"""What an attacker writes to a socket: requests put together by hand, signed or not, and the server they meet."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from subnet.net.auth import Signer, Verifier, dev_signer
from subnet.net.base import Request, Response, reply
from subnet.net.server import Served, serve
from subnet.types import Hotkey

VICTIM = dev_signer("//victim").hotkey
MARK = "EVILMARK"  # whatever holds it came from the attacker
CAP_BYTES = 64 * 1024


@dataclass
class Victim:
    """A served peer. ``seen`` are the requests that reached its handler."""

    act: Callable[[Request], Awaitable[Response]] | None = None
    seen: list[Request] = field(default_factory=list)
    served: Served | None = None

    async def handle(self, request: Request) -> Response:
        self.seen.append(request)
        return reply(b"done") if self.act is None else await self.act(request)

    @asynccontextmanager
    async def up(self, **options: Any) -> AsyncIterator[int]:
        caps = {"/v1/forward": CAP_BYTES}
        async with serve(self.handle, Verifier(VICTIM), "127.0.0.1", 0, caps, **options) as self.served:
            yield self.served.port


def request_bytes(method: str, target: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """An HTTP/1.1 request as it goes over the wire."""
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def signed(
    body: bytes = b"body",
    *,
    signer: Signer | None = None,
    method: str = "POST",
    target: str = "/v1/forward?shard=1",
    receiver: Hotkey = VICTIM,
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a proper request, for the caller to spoil."""
    signer = signer or dev_signer("//attacker")
    return {**signer.headers(method, target, body, receiver), "Content-Length": str(len(body))}, body


async def exchange(port: int, data: bytes) -> tuple[int, bytes]:
    """Write ``data``, read one answer: its status, and all bytes of head and body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await read_answer(reader)
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status, and all bytes of head and body."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.lower().startswith(b"content-length"))
    return int(head.split()[1]), head + await reader.readexactly(length)


def code_of(answer: bytes) -> str:
    """The error code in an answer."""
    return str(json.loads(answer.split(b"\r\n\r\n", 1)[1])["code"])
