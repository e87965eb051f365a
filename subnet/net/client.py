"""``Peers`` over HTTP: signed requests on kept-alive connections, a deadline on each.

Not here: retries (whoever waits for something knows best how), the other side (``subnet.net.server``).
Invariants: no request outlives its deadline; no answer is read past the cap, nor unpacked; an error arrives as the
``LiquidError`` that the other side raised; a cancelled request closes its connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
from yarl import URL

from subnet.errors import DeadlineExceeded, PeerUnreachable, TooLarge
from subnet.net.auth import Signer
from subnet.net.base import MAX_RESPONSE_BYTES, PeerAddress, Response, check_url, opened, target_of

KEEPALIVE_S = 60.0  # less than the server's, so that a POST never meets a connection that is just being closed
CONNECT_TIMEOUT_S = 5.0  # a peer that does not even accept a connection is gone; loopback and WAN take < 1 s


class HttpPeers:
    """One neuron's connections to all others. Make it inside a running event loop."""

    def __init__(self, signer: Signer, *, max_response_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._signer = signer
        self._max_response_bytes = max_response_bytes
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
            skip_auto_headers=("User-Agent", "Accept-Encoding", "Accept"),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )

    async def request(
        self,
        to: PeerAddress,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        timeout_s: float,
    ) -> bytes:
        """See ``Peers``."""
        if self._session.closed:
            raise PeerUnreachable("This side is closed.")
        target = target_of(path, query)
        headers = self._signer.headers(method, target, body, to.hotkey)
        try:
            async with asyncio.timeout(timeout_s):
                return opened(await self._exchange(check_url(to.url) + target, method, headers, body))
        except TimeoutError:
            raise DeadlineExceeded(f"No answer to {method} {path} within {timeout_s:g} s.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PeerUnreachable(f"{method} {path}: {type(error).__name__}.") from None

    async def _exchange(self, url: str, method: str, headers: dict[str, str], body: bytes) -> Response:
        async with self._session.request(
            method, URL(url, encoded=True), data=body or None, headers=headers, allow_redirects=False
        ) as response:
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > self._max_response_bytes:
                    raise TooLarge("The answer is over the size that this side accepts.")
                chunks.append(chunk)
            return Response(response.status, b"".join(chunks))

    async def aclose(self) -> None:
        """See ``Peers``."""
        await self._session.close()
