"""The chain itself, without sockets: genesis, transactions in, blocks out, state at every recent block.

Blocks are made one at a time by `produce()`: by a timer (rpc) or by a test. In each block, epochs that are due run
first, then the pool's transactions in order. Finality is immediate unless a fault holds it back. With a state file the
chain goes on where it was (see store); the pool is not kept. Invariants: a transaction that fails costs its fee and
changes nothing else; total issuance equals the sum of balances; alpha is conserved (see epochs); a block is in the file
before anybody hears of it; memory is bounded by `history_blocks`, older blocks and states are forgotten.

Source: FRAME's block life cycle; fee as measured for small calls on the real chain.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bittensor_core as core

from subnet.localnet.devchain import epochs, metadata, pallet_balances, pallet_shield, prices, subnets
from subnet.localnet.devchain.blocks import Block, Finality
from subnet.localnet.devchain.calls import PAID_BY_OWNER, dispatch
from subnet.localnet.devchain.dispatch import Context, DispatchError, Rules
from subnet.localnet.devchain.extrinsics import (
    CANNOT_PAY,
    STALE,
    Extrinsic,
    InvalidTransaction,
    Pool,
    Waiting,
    Watcher,
    blake2_256,
    decode,
    verify,
)
from subnet.localnet.devchain.faults import Faults
from subnet.localnet.devchain.scale import octets
from subnet.localnet.devchain.state import Codec, State, View
from subnet.localnet.devchain.store import Store

TRANSACTION_VERSION = 1
SS58_FORMAT = 42
NO_HASH = "0x" + "00" * 32
UNSIGNED_V4 = b"\x04"
HISTORY_BLOCKS = 4096  # 79 MiB with 256 neurons and 64 voters, by scripts/bench chain; a client needs some dozens
POOL_BYTES = 20 << 20  # substrate's default
MIN_BLOCK_TIME_S = 0.001  # clients read it in whole milliseconds

# The published signature of quicknet round 1000, for opening sealed weights offline.
DRAND_ROUND_1000 = "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39"

DEV_ACCOUNTS = ("//Alice", "//Bob", "//Charlie", "//Dave", "//Eve", "//Ferdie")
DEV_ENDOWMENT_RAO = 10**15  # a million TAO, as on the real local network


@dataclass(frozen=True)
class DevChainConfig:
    """block_time_s: timer interval, and what clients read as slot duration; tempo_blocks: default of new subnets
    history_blocks: how many recent blocks and states are kept; fee_rao: price of every transaction
    emission_rao: alpha per block and subnet; drand_signatures: rounds that sealed weights can be opened with
    """

    block_time_s: float = 0.25
    tempo_blocks: int = 20
    history_blocks: int = HISTORY_BLOCKS
    spec_version: int = 470  # fictitious
    fee_rao: int = 124_414
    allow_loopback: bool = True
    emission_rao: int = 10**9
    drand_signatures: Mapping[int, str] = field(default_factory=lambda: {1000: DRAND_ROUND_1000})

    def __post_init__(self) -> None:
        if not self.block_time_s >= MIN_BLOCK_TIME_S:
            raise ValueError(f"block_time_s is {self.block_time_s}; it has to be at least {MIN_BLOCK_TIME_S}")
        if self.history_blocks < 1:
            raise ValueError(f"history_blocks is {self.history_blocks}; it has to be at least 1")


class AlreadyFinal(Exception):
    """The newest block cannot be replaced any more."""


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class DevChain:
    """now_ms: Unix time for block timestamps; give a constant or a counter for reproducible block hashes
    state_file: where the chain lives on, None for memory alone; ConfigError refuses one, see `store`

    A new chain is first written with its first block or change, or by `save`.
    """

    def __init__(
        self,
        config: DevChainConfig | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
        state_file: Path | None = None,
    ) -> None:
        self.config = config or DevChainConfig()
        self.now_ms = now_ms
        self.metadata = {
            version: metadata.build(version, round(self.config.block_time_s * 1000)) for version in (14, 15)
        }
        self.runtime = core.Runtime(self.metadata[15], self.config.spec_version, TRANSACTION_VERSION, SS58_FORMAT)
        self.state = State(Codec(self.runtime), self.config.history_blocks)
        self.rules = Rules(self.config.allow_loopback, self.config.emission_rao, self.config.drand_signatures)
        self.faults = Faults()
        self.pool = Pool()
        self.blocks: dict[int, Block] = {}
        self.numbers: dict[str, int] = {}
        self.listeners: list[Callable[[Block], None]] = []  # told of every block, in order
        self.finality_listeners: list[Callable[[Block], None]] = []  # told of every final block, in order
        self.payments: dict[int, epochs.Payment] = {}  # each subnet's newest
        self.is_batching = False
        self.store = None if state_file is None else Store(state_file)
        self.is_restored = self.store is not None and not self.store.is_new
        # Clients cache metadata by genesis hash: it changes with the tables.
        genesis_hash = "0x" + blake2_256(b"liquid devchain" + self.metadata[15]).hex()
        if self.is_restored:
            self._restore(genesis_hash)
        else:
            self._genesis(genesis_hash)
        self.finality = Finality(self.head.number)

    # Genesis, and what a test or the launcher changes between blocks

    def _genesis(self, genesis_hash: str) -> None:
        self.state.unsaved = None if self.store is None else set()
        for uri in DEV_ACCOUNTS:
            pallet_balances.endow(self.state, core.Keypair.create_from_uri(uri).ss58_address, DEV_ENDOWMENT_RAO)
        subnets.set_globals(self.state)
        self.state.put("Sudo", "Key", core.Keypair.create_from_uri(DEV_ACCOUNTS[0]).ss58_address)
        self._append(Block(0, genesis_hash, NO_HASH, (), self.now_ms()))

    def _restore(self, genesis_hash: str) -> None:
        assert self.store is not None
        saved = self.store.load(genesis_hash)
        for block in saved.blocks:
            self._append(block)
        self.state.restore(saved.storage, saved.blocks[-1].number, saved.journals)
        self.payments = saved.payments

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Changes of its body reach the state file together, at its end.

        If it raises, none of them do, nor anything later: the chain is then half changed and of no further use.
        """
        self.is_batching = True
        yield
        self.is_batching = False
        self.save()

    def save(self) -> None:
        """Everything that changed reaches the state file, if there is one. Raises ConfigError."""
        if self.store is not None and self.state.unsaved and not self.is_batching:
            self.store.save(self.state, self.head, self.payments)

    def close(self) -> None:
        """Saves, and lets go of the state file."""
        if self.store is not None:
            self.save()
            self.store.close()

    def endow(self, account: str, rao: int) -> None:
        pallet_balances.endow(self.state, account, rao)
        self.save()

    def add_subnet(self, owner_coldkey: str, owner_hotkey: str, **hyperparameters: Any) -> int:
        """hyperparameters: storage items by name (Tempo=20, ImmunityPeriod=100, ...); ValueError names unknown ones"""
        netuid = max(subnets.netuids(self.state), default=0) + 1
        settings = {"Tempo": self.config.tempo_blocks, **hyperparameters}
        subnets.create(self.state, netuid, (owner_coldkey, owner_hotkey), settings)
        self.save()
        return netuid

    def register(self, netuid: int, coldkey: str, hotkey: str) -> int:
        """A neuron without a transaction or a price; returns its uid. Raises DispatchError."""
        with self.state.transaction():
            uid = subnets.register(self.state, netuid, hotkey, coldkey)
        self.save()
        return uid

    def set_stake(self, netuid: int, hotkey: str, rao: int) -> None:
        """Creates or destroys alpha so that the hotkey has ``rao``, and hands out permits at once."""
        change = rao - subnets.stake_rao(self.state, netuid, hotkey)
        subnets.add_stake(self.state, netuid, hotkey, change)
        subnets.change_alpha_out(self.state, netuid, change)
        subnets.update_permits(self.state, netuid)
        self.save()

    # Reading

    @property
    def head(self) -> Block:
        return self.blocks[self.state.number]

    @property
    def final(self) -> Block:
        """The newest final block."""
        return self.blocks[self.finality.number]

    def hash_at(self, number: int) -> str | None:
        block = self.blocks.get(number)
        return None if block is None else block.hash

    def block_at(self, block_hash: str | None) -> Block | None:
        """None stands for the newest block."""
        if block_hash is None:
            return self.head
        number = self.numbers.get(block_hash)
        return None if number is None else self.blocks[number]

    def view_at(self, block_hash: str | None) -> View | None:
        block = self.block_at(block_hash)
        return None if block is None else self.state.at(block.number)

    # Transactions

    def payer(self, extrinsic: Extrinsic) -> str:
        """Calls of hotkeys are paid for by the coldkey that owns them."""
        if (extrinsic.call.pallet, extrinsic.call.name) in PAID_BY_OWNER:
            return subnets.owner_of(self.state, extrinsic.signer) or extrinsic.signer
        return extrinsic.signer

    def submit(self, raw: bytes, watcher: Watcher | None = None) -> str:
        """Into the pool; returns the transaction's hash. Raises InvalidTransaction."""
        return self._admit(raw, watcher, self.head.number)

    def _admit(self, raw: bytes, watcher: Watcher | None, current: int) -> str:
        extrinsic = decode(self.runtime, raw)
        verify(self.runtime, extrinsic, current, self.hash_at)
        if extrinsic.nonce < self.nonce(extrinsic.signer):
            raise InvalidTransaction(STALE)
        if pallet_balances.free_rao(self.state, self.payer(extrinsic)) < self.fee(extrinsic):
            raise InvalidTransaction(CANNOT_PAY)
        waiting_bytes = sum(len(entry.extrinsic.raw) for entry in self.pool.waiting.values())
        if waiting_bytes + len(raw) > POOL_BYTES:
            raise InvalidTransaction(None, 1016, "Immediately Dropped: the pool is full")
        self.pool.add(Waiting(extrinsic, extrinsic.last_block(current), watcher))
        return extrinsic.hash

    def fee(self, extrinsic: Extrinsic) -> int:
        return self.config.fee_rao + extrinsic.tip

    def nonce(self, who: str) -> int:
        return int(pallet_balances.account(self.state, who)["nonce"])

    def next_nonce(self, who: str) -> int:
        """What the next transaction should carry, counting those in the pool."""
        return self.pool.next_nonce(who, self.nonce(who))

    # Blocks

    def produce(self) -> Block:
        """One block with everything that is ready."""
        self.save()  # what was changed since the newest block amends that one
        return self._next_block()

    def reorg(self) -> Block:
        """Another block in place of the newest, with what is ready now. Raises AlreadyFinal.

        The transactions of the replaced one return to the pool first; what amended it between blocks is undone too.
        """
        if self.head.number <= self.finality.number:
            raise AlreadyFinal(f"block {self.head.number} is final")
        self.save()
        retracted = self.finality.retract()
        replaced = retracted.block
        self.state.drop_block()
        del self.numbers[self.blocks.pop(replaced.number).hash]
        returned = {(entry.extrinsic.signer, entry.extrinsic.nonce): entry for entry in retracted.entries}
        self.pool.waiting = {**returned, **self.pool.waiting}
        for entry in retracted.entries:
            if entry.watcher is not None:
                entry.watcher({"retracted": replaced.hash})
        return self._next_block(replaced.time_ms + 1)  # another time, another hash

    def _next_block(self, not_before_ms: int = 0) -> Block:
        parent = self.head
        number = parent.number + 1
        now = max(self.now_ms(), parent.time_ms + 1, not_before_ms)
        self.state.next_block(number)
        self.state.put("System", "Number", number)
        self.state.put("Timestamp", "Now", now)
        records = self._initialize(number)
        inherent = bytes(self.runtime.compose_call("Timestamp", "set", {"now": now}))
        included = [octets(UNSIGNED_V4 + inherent)]
        records += [self._record(0, *self._success("Mandatory"))]
        settled: list[tuple[Waiting, bool]] = [(entry, False) for entry in self.pool.take_expired(number)]
        for entry in () if self.faults.no_inclusion else self.pool.take_ready(self.nonce):
            events = self._apply(entry.extrinsic, number)
            settled.append((entry, events is not None))
            if events is not None:
                records += [self._record(len(included), *event) for event in events]
                included.append(entry.extrinsic.raw)
                self._unshield(entry.extrinsic, number)
        self.state.put("System", "Events", records)
        content = parent.hash.encode() + now.to_bytes(8, "little") + b"".join(included)
        block_hash = "0x" + blake2_256(number.to_bytes(8, "little") + content).hex()
        block = Block(number, block_hash, parent.hash, tuple(included), now)
        self._append(block)
        self.save()
        self._tell(block, settled)
        return block

    def _unshield(self, carrier: Extrinsic, number: int) -> None:
        """What a carrier hides joins the pool behind it, and so this block if it is ready."""
        raw = pallet_shield.hidden(carrier, number) if carrier.is_shielded else None
        if raw is not None:
            with suppress(InvalidTransaction):  # the carrier has paid; nobody is told, as on the real chain
                self._admit(raw, None, number - 1)

    def _append(self, block: Block) -> None:
        self.blocks[block.number] = block
        self.numbers[block.hash] = block.number
        forgotten = block.number - self.config.history_blocks
        if forgotten > 0 and forgotten in self.blocks:
            del self.numbers[self.blocks.pop(forgotten).hash]

    def _initialize(self, number: int) -> list[dict[str, Any]]:
        """Emission and epochs, before any transaction."""
        context = Context(self.state, self.rules, number, None)
        pallet_shield.announce(self.state, number)
        for netuid in subnets.netuids(self.state):
            prices.decay(self.state, netuid, number)
            epochs.accrue(self.state, netuid, self.rules.emission_rao)
            if epochs.is_due(self.state, netuid, number):
                self.payments[netuid] = epochs.run_epoch(context, netuid)
            else:
                since = number - subnets.read(self.state, "LastEpochBlock", netuid)
                self.state.put(subnets.PALLET, "BlocksSinceLastStep", since, netuid)
        return [self._record(None, *event) for event in context.events]

    def _apply(self, extrinsic: Extrinsic, number: int) -> list[tuple[str, str, Any]] | None:
        """The events of a transaction, or None if it is no longer valid and stays out of the block."""
        fee, payer = self.fee(extrinsic), self.payer(extrinsic)
        if extrinsic.nonce != self.nonce(extrinsic.signer) or not pallet_balances.burn(self.state, payer, fee):
            return None
        pallet_balances.bump_nonce(self.state, extrinsic.signer)
        context = Context(self.state, self.rules, number, extrinsic.signer, extrinsic.call_bytes)
        try:
            dispatch(context, extrinsic.call)
            outcome = self._success("Normal")
        except DispatchError as error:
            failed = {"dispatch_error": error.value, **self._success("Normal")[2]}
            outcome = ("System", "ExtrinsicFailed", failed)
        paid = {"who": payer, "actual_fee": fee, "tip": extrinsic.tip}
        return [*context.events, ("TransactionPayment", "TransactionFeePaid", paid), outcome]

    @staticmethod
    def _success(dispatch_class: str) -> tuple[str, str, Any]:
        weight = {"ref_time": 1000, "proof_size": 100}
        info = {"weight": weight, "class": dispatch_class, "pays_fee": "Yes"}
        return "System", "ExtrinsicSuccess", {"dispatch_info": info}

    @staticmethod
    def _record(index: int | None, pallet: str, event: str, fields: Any) -> dict[str, Any]:
        phase = "Initialization" if index is None else {"ApplyExtrinsic": index}
        return {"phase": phase, "event": {pallet: {event: fields}}, "topics": []}

    def _tell(self, block: Block, settled: list[tuple[Waiting, bool]]) -> None:
        for listener in list(self.listeners):
            listener(block)
        for entry, is_included in settled:
            if entry.watcher is not None:
                entry.watcher({"inBlock": block.hash} if is_included else "invalid")
        self.finality.add(block, [entry for entry, is_included in settled if is_included])
        self.finalise()

    def finalise(self) -> None:
        """Moves finality as far as it may go, and tells; a block that history forgets next becomes final anyway."""
        oldest = self.head.number - self.config.history_blocks + 1
        for included in self.finality.advance(oldest if self.faults.unfinalised else self.head.number):
            for listener in list(self.finality_listeners):
                listener(included.block)
            for entry in included.entries:
                if entry.watcher is not None:
                    entry.watcher({"finalized": included.block.hash})
