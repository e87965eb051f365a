"""``Peers`` over HTTP: signed requests on kept-alive connections, a deadline on each.

Not here: retries (whoever waits for something knows best how), the other side (``subnet.net.server``).
An answer that came through a relay counts only with the peer's own signature; without one it says at most that the
peer is away.
Invariants: no request outlives its deadline; no answer is read past the cap, nor unpacked; an error arrives as the
``LiquidError`` that the other side raised; a cancelled request closes its connection; a relay cannot speak for the peer
behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import aiohttp
from yarl import URL

from subnet.errors import DeadlineExceeded, LiquidError, Malformed, PeerUnreachable, TooLarge, Unavailable
from subnet.net.auth import Signer, verify_signature
from subnet.net.base import MAX_RESPONSE_BYTES, PeerAddress, Response, check_url, opened, relayed_hotkey, target_of
from subnet.net.frames import ANSWER_HEADER, INLINE_BYTES, answer_bytes
from subnet.net.gate import SIGNED_HEADER
from subnet.types import Hotkey

KEEPALIVE_S = 60.0  # less than the server's, so that a POST never meets a connection that is just being closed
CONNECT_TIMEOUT_S = 5.0  # a peer that does not even accept a connection is gone; loopback and WAN take < 1 s


class HttpPeers:
    """One neuron's connections to all others. Make it inside a running event loop."""

    def __init__(
        self,
        signer: Signer,
        *,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        connector: aiohttp.TCPConnector | None = None,
    ) -> None:
        self._signer = signer
        self._max_response_bytes = max_response_bytes
        self._session = aiohttp.ClientSession(
            connector=connector or aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S),
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
        url, behind = check_url(to.url), relayed_hotkey(to.url)
        if behind not in (None, to.hotkey):
            raise Malformed("That address behind a relay is another peer's.")
        headers = self._signer.headers(method, target, body, to.hotkey)
        try:
            async with asyncio.timeout(timeout_s):
                response, proof = await self._exchange(url + target, method, headers, body)
                if behind is not None:
                    await _require_proof(to.hotkey, headers[SIGNED_HEADER], response, proof)
                return opened(response)
        except TimeoutError:
            raise DeadlineExceeded(f"No answer to {method} {path} within {timeout_s:g} s.") from None
        except (aiohttp.ClientError, OSError) as error:
            raise PeerUnreachable(f"{method} {path}: {type(error).__name__}.") from None

    async def _exchange(self, url: str, method: str, headers: dict[str, str], body: bytes) -> tuple[Response, str]:
        async with self._session.request(
            method, URL(url, encoded=True), data=body or None, headers=headers, allow_redirects=False
        ) as response:
            chunks, size = [], 0
            async for chunk in response.content.iter_any():
                size += len(chunk)
                if size > self._max_response_bytes:
                    raise TooLarge("The answer is over the size that this side accepts.")
                chunks.append(chunk)
            return Response(response.status, b"".join(chunks)), response.headers.get(ANSWER_HEADER, "")

    async def aclose(self) -> None:
        """See ``Peers``."""
        await self._session.close()


async def _require_proof(hotkey: Hotkey, request_signature: str, response: Response, proof: str) -> None:
    if len(response.body) > INLINE_BYTES:
        signed = await asyncio.to_thread(answer_bytes, request_signature, response.status, response.body)
    else:
        signed = answer_bytes(request_signature, response.status, response.body)
    if not verify_signature(hotkey, signed, proof):
        raise _relays_own(response)


def _relays_own(response: Response) -> Unavailable:
    """What an answer means that the peer behind a relay did not sign: the peer is away, as far as we know."""
    try:
        opened(response)
    except Unavailable as error:
        return error
    except LiquidError as error:
        return Unavailable(f"The relay did not bring a request to its peer: {error.message}")
    return Unavailable("An answer came through a relay without the peer's signature.")
