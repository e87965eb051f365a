"""The error tree.

    LiquidError                      code, retryable, remedy
    ├── ConfigError                  also a ValueError: the operator's configuration cannot be used
    │   └── NotRegistered            this neuron's hotkey has no place in the subnet
    ├── Refused                      a peer's input breaks a rule; nothing was changed
    │   ├── Malformed                not decodable, wrong type, unknown field, wrong shape or dtype
    │   ├── TooLarge                 over the size cap, refused before it was read
    │   ├── NotFinite                NaN or infinity in a tensor
    │   ├── Unauthorized             bad, missing, stale or replayed signature
    │   ├── Forbidden                signed well, but this sender may not do this
    │   ├── Missing                  no such thing here (any more)
    │   └── OutOfTurn                right request, wrong round or phase
    ├── Unavailable                  retryable: the other side did not answer
    │   ├── PeerUnreachable          connection refused or lost
    │   └── DeadlineExceeded         no answer within the deadline
    ├── ChainError                   something is not as a call to the chain needs it
    │   ├── ChainUnreachable         retryable: connection refused or lost; no answer is DeadlineExceeded
    │   └── ChainRefused             the chain said no, under a name of its own
    │       └── ChainNotNow          retryable: rate limit, stale nonce, full pool
    ├── OwnerChanged                 retryable, by a new start: the run has another owner or orchestrator now
    ├── LedgerCorrupt                the hash chain does not hold
    ├── JournalCorrupt               a journal or snapshot does not match its digest
    └── Diverged                     NaN or an exploding loss

Each error has a ``code`` (stable, goes over the wire), says whether a retry can help, and names the remedy.
Messages describe our side only; a stranger's bytes are never echoed.
"""

from __future__ import annotations

from typing import ClassVar


class LiquidError(Exception):
    """Root of all errors that Liquid raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    remedy: ClassVar[str] = ""
    status: ClassVar[int] = 500  # HTTP status under which the error travels

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.advice = remedy if remedy is not None else self.remedy

    def __str__(self) -> str:
        return f"{self.message} {self.advice}".strip()


class ConfigError(LiquidError, ValueError):
    """The operator's configuration cannot be used."""

    code = "config"
    remedy = "Correct the configuration and start again."


class NotRegistered(ConfigError):
    """This neuron's hotkey has no place in the subnet."""

    code = "not_registered"
    remedy = "Register it with btcli subnets register."


class Refused(LiquidError):
    """A peer's input breaks a rule."""

    code = "refused"
    status = 400
    remedy = "Do not send it again unchanged."


class Malformed(Refused):
    """Not decodable as what the route expects."""

    code = "malformed"
    status = 422
    remedy = "Check that both sides run the same protocol version."


class TooLarge(Refused):
    """Over the size cap; refused before it was read."""

    code = "too_large"
    status = 413
    remedy = "Send at most what the RunConfig's shapes need."


class NotFinite(Refused):
    """NaN or infinity in a tensor."""

    code = "not_finite"
    status = 422
    remedy = "Look for a diverged optimiser or a hardware fault on the sending machine."


class Unauthorized(Refused):
    """A signature is missing, bad, stale, replayed or made for another receiver."""

    code = "unauthorized"
    status = 401
    remedy = "Sign each request anew with the registered hotkey and keep the clock within two seconds."


class Forbidden(Refused):
    """Signed well, but this sender may not do this."""

    code = "forbidden"
    status = 403
    remedy = "Register the hotkey on the subnet and join the run first."


class Missing(Refused):
    """There is no such thing here, or not any more."""

    code = "missing"
    status = 404
    remedy = "Ask another peer; retention is bounded."


class OutOfTurn(Refused):
    """The request belongs to another round or phase."""

    code = "out_of_turn"
    status = 409
    remedy = "Follow the ledger to the present round."


class Unavailable(LiquidError):
    """The other side did not answer."""

    code = "unavailable"
    status = 503
    retryable = True
    remedy = "It is tried again by itself."


class PeerUnreachable(Unavailable):
    """A connection was refused or lost."""

    code = "unreachable"
    remedy = "Check that the peer's axon address and port can be reached from here."


class DeadlineExceeded(Unavailable):
    """No answer came within the deadline."""

    code = "deadline"
    status = 504


class ChainError(LiquidError):
    """A call to the chain cannot succeed as it is."""

    code = "chain"
    remedy = "Check --subtensor.network, the wallet and --netuid."


class ChainUnreachable(ChainError):
    """The chain refused or lost the connection. A transaction may have been taken all the same."""

    code = "chain_unreachable"
    status = 503
    retryable = True
    remedy = "It is tried again by itself; if it lasts, check --subtensor.network and --subtensor.chain_endpoint."


class ChainRefused(ChainError):
    """The chain said no, and would again. ``name``: the runtime's or the pool's; ``kind``: the SDK's class of it."""

    code = "chain_refused"

    def __init__(self, message: str, *, name: str = "", kind: str = "unknown", remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.name = name
        self.kind = kind


class ChainNotNow(ChainRefused):
    """The chain said no to the moment, not to the call."""

    code = "chain_not_now"
    retryable = True
    remedy = "It is tried again by itself, later."


class OwnerChanged(LiquidError):
    """The run has another owner or orchestrator than this program was started for."""

    code = "owner_changed"
    retryable = True
    remedy = "A new start finds the new one."


class LedgerCorrupt(LiquidError):
    """The hash chain of the ledger does not hold."""

    code = "ledger_corrupt"
    remedy = "Restore the ledger from a copy; every validator and miner keeps one."


class JournalCorrupt(LiquidError):
    """A journal or a snapshot does not match its digest."""

    code = "journal_corrupt"
    remedy = "Remove the damaged file; the state is then fetched from the network checkpoint."


class Diverged(LiquidError):
    """NaN or an exploding loss; the round must not be committed."""

    code = "diverged"
    remedy = "The previous parameters stand; lower the learning rate if it happens again."


def by_code(code: str) -> type[LiquidError]:
    """The class that carries ``code``; ``LiquidError`` itself for an unknown one."""
    pending: list[type[LiquidError]] = [LiquidError]
    while pending:
        found = pending.pop()
        if found.code == code:
            return found
        pending.extend(found.__subclasses__())
    return LiquidError
