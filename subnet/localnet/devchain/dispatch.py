"""What a call sees while it runs, and how it fails: the contract between the pallets and block production.

A handler gets a `Context` and the call's arguments by name; it either returns, or raises DispatchError and none of its
writes or events remain. Errors are the runtime's, by name; their indices come from the tables.

Source: `DispatchError` of sp-runtime; FRAME's transactional dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from subnet.localnet.devchain.scale import Reader
from subnet.localnet.devchain.state import State
from subnet.localnet.devchain.tables_pallets import PALLETS


class DispatchError(Exception):
    """A call failed. value: the error as the chain's `DispatchError` type takes it"""

    def __init__(self, value: Any, name: str) -> None:
        super().__init__(name)
        self.value = value
        self.name = name


def module_error(pallet: str, name: str) -> DispatchError:
    """The error of a pallet by name; KeyError if the tables lack it."""
    declared = PALLETS[pallet]
    indices = {text.split(":")[0]: index for index, text in declared.errors.items()}
    number = bytes([indices[name], 0, 0, 0])
    return DispatchError({"Module": {"index": declared.index, "error": "0x" + number.hex()}}, f"{pallet}.{name}")


def bad_origin() -> DispatchError:
    return DispatchError("BadOrigin", "BadOrigin")


def subtensor_error(name: str) -> DispatchError:
    return module_error("SubtensorModule", name)


@dataclass(frozen=True)
class Rules:
    """Where this chain is more lenient or richer than a public one.

    emission_rao: alpha that every subnet creates in each block
    drand_signatures: hex signature of each drand round that sealed weights can be opened with
    """

    allow_loopback: bool = True
    emission_rao: int = 10**9
    drand_signatures: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """A decoded call, nested calls included."""

    pallet: str
    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def from_decoded(cls, decoded: Mapping[str, Any]) -> Call:
        arguments = {argument["name"]: argument["value"] for argument in decoded["call_args"]}
        return cls(decoded["call_module"], decoded["call_function"], arguments)


CALL_INDEX_BYTES = 2  # pallet and call, in front of the arguments


@dataclass
class Context:
    """One call in one block.

    signer: its ss58 address, or None for the root origin
    call_bytes: the encoded call; byte strings among the decoded arguments are not exact (see `sealed`)
    """

    state: State
    rules: Rules
    block: int
    signer: str | None
    call_bytes: bytes = b""
    events: list[tuple[str, str, Any]] = field(default_factory=list)

    @property
    def who(self) -> str:
        """The signer; a root origin is refused."""
        if self.signer is None:
            raise bad_origin()
        return self.signer

    @property
    def encoded_arguments(self) -> Reader:
        return Reader(self.call_bytes[CALL_INDEX_BYTES:])

    def emit(self, pallet: str, event: str, fields: Any) -> None:
        self.events.append((pallet, event, fields))


Handler = Callable[..., None]
