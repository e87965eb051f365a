"""Can others reach a peer at the address that it is about to publish? The orchestrator tries it on the peer's behalf.

The orchestrator connects back and asks for the peer's signature over a fresh nonce and that very address; the peer then
publishes the address, or one behind a relay. Not here: the relay (``subnet.net.relay``), who is admitted (the service).
Invariants: only an address of the published form is tried, at one fixed path, without redirects, for a few seconds and
for an answer of a few bytes; addresses of private networks are tried only for an orchestrator that has one itself; a
peer is told yes or no and nothing else of what was met there.
Source: OWASP's rules against server-side request forgery; AutoNAT of libp2p, which dials back in the same way.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from subnet.clock import Clock
from subnet.errors import Forbidden, LiquidError, Malformed, Unavailable
from subnet.log import Event, event
from subnet.net.auth import Signer, verify_signature
from subnet.net.base import KIB, PeerAddress, Peers, Request, Response, check_url, relayed_hotkey, reply
from subnet.net.client import HttpPeers
from subnet.net.messages import ProbeAnswer, ProbeChallenge, ProbeReply, ProbeRequest
from subnet.net.quota import Quotas
from subnet.records import decode
from subnet.types import Hotkey

PROBE_PATH = "/v1/probe"  # of the orchestrator, who is asked to try, and of the peer, who is tried
PROBE_TIMEOUT_S = 4.0  # a peer that answers later than that is of no use to the pipeline either
ASK_TIMEOUT_S = 3 * PROBE_TIMEOUT_S
MAX_ANSWER_BYTES = KIB
MAX_PROBES = 8  # under way at a time
PROBES_PER_S, BURST_PROBES = 0.1, 3.0  # of one hotkey; a peer probes once at its start
NONCE_BYTES = 16


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_global


def is_private(host: str) -> bool:
    """Whether ``host`` is an address of a private network or of this machine; a name is not."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return not address.is_unspecified and not _is_public(host)


class _PublicResolver(AbstractResolver):
    """Names as the system resolves them, without private addresses: what was checked is what is connected to."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """See ``AbstractResolver``; raises ``OSError`` when nothing is left."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
        public = [item for item in found if _is_public(str(item[4][0]))]
        if not public:
            raise OSError("no public address")
        return [
            ResolveResult(hostname=host, host=str(at[0]), port=port, family=kind, proto=proto, flags=0)
            for kind, _, proto, _, at in public
        ]

    async def close(self) -> None:
        """Nothing is held."""


def answer_probe(request: Request, signer: Signer, url: str) -> Response:
    """The peer's side: its signature for the orchestrator's nonce. Raises ``Refused``."""
    challenge = decode(ProbeChallenge, request.body)
    if challenge.url != url:
        raise Forbidden("That is not this peer's address.")
    return reply(ProbeAnswer(signature=signer.sign(challenge.signed_bytes(signer.hotkey))))


async def is_reachable(peers: Peers, orchestrator: PeerAddress, url: str) -> bool:
    """Ask the orchestrator to try ``url``, at which ``answer_probe`` answers; an orchestrator that cannot be asked has
    not reached this peer."""
    body = ProbeRequest(url=url).encoded()
    try:
        answer = await peers.request(orchestrator, "POST", PROBE_PATH, body, timeout_s=ASK_TIMEOUT_S)
        found = decode(ProbeReply, answer).is_reachable
    except LiquidError as error:
        event(Event.PROBED, url=url, is_reachable=False, reason=str(error))
        return False
    event(Event.PROBED, url=url, is_reachable=found)
    return found


class Prober:
    """The orchestrator's side. ``allows_private``: addresses of private networks are tried too."""

    def __init__(self, signer: Signer, clock: Clock, *, allows_private: bool) -> None:
        self._clock = clock
        self._allows_private = allows_private
        self._quotas = Quotas(requests_per_s=PROBES_PER_S, burst_requests=BURST_PROBES)
        self._under_way = 0
        resolver: dict[str, Any] = {} if allows_private else {"resolver": _PublicResolver()}
        connector = aiohttp.TCPConnector(limit=MAX_PROBES, force_close=True, use_dns_cache=False, **resolver)
        self._peers = HttpPeers(signer, max_response_bytes=MAX_ANSWER_BYTES, connector=connector)

    async def probe(self, hotkey: Hotkey, request: ProbeRequest) -> ProbeReply:
        """Whether ``hotkey`` answers at the address; raises ``Malformed`` and ``Unavailable`` (asked too often)."""
        url = check_url(request.url)
        if relayed_hotkey(url) is not None:
            raise Malformed("An address behind a relay is not probed.")
        self._quotas.charge(hotkey, 0, self._clock.now_s())
        if self._under_way >= MAX_PROBES:
            raise Unavailable("Too many peers are being probed at this time.")
        self._under_way += 1
        try:
            reason = await self._try(PeerAddress(hotkey, url))
        finally:
            self._under_way -= 1
        event(Event.PROBED, hotkey=hotkey, url=url, is_reachable=reason is None, reason=reason or "answered")
        return ProbeReply(is_reachable=reason is None)

    async def _try(self, to: PeerAddress) -> str | None:
        """What was in the way; None if the peer answered."""
        if not self._may_try(to.url):
            return "private address"
        challenge = ProbeChallenge(url=to.url, nonce=secrets.token_hex(NONCE_BYTES))
        try:
            body = await self._peers.request(to, "POST", PROBE_PATH, challenge.encoded(), timeout_s=PROBE_TIMEOUT_S)
            answer = decode(ProbeAnswer, body)
        except LiquidError as error:
            return error.code
        signed = challenge.signed_bytes(to.hotkey)
        return None if verify_signature(to.hotkey, signed, answer.signature) else "signature"

    def _may_try(self, url: str) -> bool:
        # A name passes here, and so does an odd spelling of an address: the resolver decides.
        host = urlsplit(url).hostname or ""
        return host not in ("0.0.0.0", "::") and (self._allows_private or not is_private(host))

    async def aclose(self) -> None:
        """Close all connections."""
        await self._peers.aclose()
