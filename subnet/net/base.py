"""The seam between peers: what a request is, what a handler is, and what a caller may expect.

Not here: sockets (``subnet.net.client``, ``subnet.net.server``), the in-memory twin (``subnet.net.memory``),
signatures (``subnet.net.auth``), the bodies' meaning (``subnet.net.messages``).
Invariants: a handler sees only requests whose size was checked before they were read and whose signature holds; a
caller gets the bytes of a successful answer or a ``LiquidError``, never a status; an error from the other side arrives
as the class of its code, but only as a class that says something about that request (a peer cannot make us believe
that our own ledger is corrupt).
Source: design.md, sections 2 and 9.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from subnet.errors import LiquidError, Malformed, Refused, Unavailable, by_code
from subnet.hashing import canonical_json
from subnet.records import AuthStamp, Record
from subnet.types import Hotkey

KIB = 1024
DEFAULT_CAP_BYTES = 256 * KIB  # routes without a cap of their own; the largest record, a Commitment, is < 100 KiB
MAX_RESPONSE_BYTES = 1024 * KIB * KIB  # what a caller accepts unless told otherwise: a stage of 256 M fp32 parameters
MAX_TARGET_CHARS = 2048  # path with query; the longest of ours is a blob key of about 200
MAX_QUERY_FIELDS = 16  # our routes use at most five
MAX_TEXT_CHARS = 300  # of another side's message that we repeat in ours
ANONYMOUS = Hotkey("")  # sender of an unsigned request to a public path
RELAY_PREFIX = "/relay"  # where a relay takes the connections of peers, and requests for them under their hotkeys

_RELAYED = re.compile(re.escape(RELAY_PREFIX) + r"/([1-9A-HJ-NP-Za-km-z]{46,50})")  # an ss58 address
_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+")  # no percent signs, no dot segments: one spelling


@dataclass(frozen=True, slots=True)
class Request:
    """What a handler gets. ``auth`` is None, and ``sender`` is ``ANONYMOUS``, for an unsigned GET of a public path."""

    sender: Hotkey
    method: str
    path: str
    query: dict[str, str]
    body: bytes
    auth: AuthStamp | None


@dataclass(frozen=True, slots=True)
class Response:
    """What a handler gives back; ``status`` is an HTTP status, 200 for success."""

    status: int
    body: bytes


Handler = Callable[[Request], Awaitable[Response]]
Caps = Mapping[str, int]  # path -> largest body in bytes; other paths: DEFAULT_CAP_BYTES


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """Whom to reach, and where."""

    hotkey: Hotkey
    url: str


class Peers(Protocol):
    """Sends signed requests to other peers.

    Raises: ``PeerUnreachable`` (refused, lost, closed), ``DeadlineExceeded``, and whatever ``Refused`` or
    ``Unavailable`` the other side answered. Reports nothing. A cancelled request frees its connection; the other side
    may have acted.
    """

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
        """The body of the answer. Each call is signed anew."""
        ...

    async def aclose(self) -> None:
        """Close all connections; later requests raise ``PeerUnreachable``."""
        ...


def reply(content: Record | bytes) -> Response:
    """A successful answer."""
    return Response(200, content if isinstance(content, bytes) else content.encoded())


def refuse(error: LiquidError) -> Response:
    """An error as it travels."""
    return Response(
        error.status, canonical_json({"code": error.code, "message": error.message, "remedy": error.advice})
    )


def opened(response: Response) -> bytes:
    """The body of a successful answer; raises the error that the other side sent."""
    if response.status == 200:
        return response.body
    raise _sent_error(response)


def _sent_error(response: Response) -> LiquidError:
    try:
        plain = json.loads(response.body)
    except (ValueError, RecursionError):
        plain = None
    fields = plain if isinstance(plain, dict) else {}
    kind = by_code(str(fields.get("code", "")))
    message, remedy = _legible(fields.get("message")), _legible(fields.get("remedy"))
    if not issubclass(kind, Refused | Unavailable):
        kind = Unavailable if response.status in (502, 503, 504) else LiquidError
    return kind(message or f"The peer answered with status {response.status}.", remedy=remedy or None)


def _legible(text: object) -> str:
    if not isinstance(text, str):
        return ""
    return "".join(char for char in text[:MAX_TEXT_CHARS] if char.isprintable())


def cap_of(caps: Caps, path: str) -> int:
    """Largest body in bytes that ``path`` takes."""
    return caps.get(path, DEFAULT_CAP_BYTES)


def target_of(path: str, query: Mapping[str, str] | None) -> str:
    """The request target that is signed and sent: the path, with the query if there is one."""
    return f"{path}?{urlencode(query, quote_via=quote, safe='')}" if query else path


def split_target(target: str) -> tuple[str, dict[str, str]]:
    """Path and query of a received target; raises ``Malformed`` for any second spelling of either."""
    path, mark, raw = target.partition("?")
    if len(target) > MAX_TARGET_CHARS or not _PATH.fullmatch(path):
        raise Malformed("The request's path is not one of ours.")
    if not mark:
        return path, {}
    try:
        pairs = parse_qsl(raw, keep_blank_values=True, strict_parsing=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError:
        raise Malformed("The query cannot be decoded.") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise Malformed("The query names a field twice.")
    return path, query


def check_url(url: str) -> str:
    """``url`` without a trailing slash; raises ``Malformed`` unless it is as peers publish: a bare http(s) origin, or
    what ``relay_url`` gives."""
    try:
        parts = urlsplit(url)
        is_origin = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_origin = False
        parts = urlsplit("")
    is_ours = parts.path in ("", "/") or _RELAYED.fullmatch(parts.path) is not None
    rest = parts.query + parts.fragment
    if not (is_origin and is_ours) or rest or "@" in parts.netloc or len(url) > MAX_TARGET_CHARS:
        raise Malformed(
            f"A peer's address must be http://HOST:PORT or https://HOST:PORT, or end in {RELAY_PREFIX}/HOTKEY."
        )
    return url.rstrip("/")


def relay_url(relay: str, hotkey: Hotkey) -> str:
    """Address of a peer behind the relay at the address ``relay`` (which ends in ``RELAY_PREFIX``)."""
    return f"{relay}/{hotkey}"


def relayed_hotkey(url: str) -> Hotkey | None:
    """Whom a relay brings requests for ``url`` to; None for an address without a relay."""
    match = _RELAYED.fullmatch(urlsplit(url).path)
    return Hotkey(match[1]) if match else None
