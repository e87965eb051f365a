"""The in-memory twin of the chain: one subnet that several hotkeys share, for tests and networks without a chain.

Not here: signatures, fees, prices, bonds, kappa. Each accepted transaction makes a block; else time passes by ``step``.
Invariants: refusals carry the names that the runtime gives them; an epoch pays the whole rao of its blocks, but for
what is burnt; the same calls give the same blocks and hashes.
Source: bittensor-v11.md, section 4.2 (emission split, burn, order of the checks).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from subnet.chain.base import MAX_COMMITMENT_BYTES, RAO_PER_ALPHA, ChainSnapshot, NeuronInfo
from subnet.chain.refusals import refusal
from subnet.errors import ChainRefused
from subnet.types import Hotkey, Uid

EMISSION_RAO_PER_BLOCK = RAO_PER_ALPHA  # one alpha for each block, as on the chain
OWNER_PERCENT = 18  # of the emission; validators get half of the rest, miners what remains
PERMIT_STAKE_RAO = 1000 * RAO_PER_ALPHA  # the stake threshold of the main network


@dataclass
class _Place:
    hotkey: Hotkey
    coldkey: str
    stake_rao: int
    has_permit: bool
    axon: str = ""
    incentive: float = 0.0
    dividends: float = 0.0
    emission_rao: int = 0
    last_update_block: int = 0
    weights: dict[Uid, float] = field(default_factory=dict)
    sealed: dict[Uid, float] | None = None  # committed, and shown at the next epoch


class MemoryLedgerChain:
    """The chain itself: one subnet with its owner at uid 0."""

    def __init__(
        self,
        owner: tuple[str, Hotkey],
        *,
        netuid: int = 1,
        tempo_blocks: int = 20,
        weights_rate_limit_blocks: int = 0,
        has_commit_reveal: bool = False,
    ) -> None:
        """``owner``: coldkey and hotkey."""
        self.netuid = netuid
        self.block = 0
        self.has_commit_reveal = has_commit_reveal
        self._owner = owner
        self._tempo_blocks = tempo_blocks
        self._rate_limit_blocks = weights_rate_limit_blocks
        self._last_epoch_block = 0
        self._commitments: dict[Hotkey, str] = {}
        self._places: list[_Place] = []
        self.register(*owner)

    # --- what happens on chain; every refusal is a ChainRefused

    def step(self, num_blocks: int = 1) -> None:
        """Let blocks pass; an epoch runs at the end of each tempo."""
        for _ in range(num_blocks):
            self.block += 1
            if self.block - self._last_epoch_block >= self._tempo_blocks:
                self._run_epoch()

    def register(self, coldkey: str, hotkey: Hotkey, stake_rao: int = 0) -> Uid:
        """A place, with stake from nowhere: this chain knows no balances."""
        if any(place.hotkey == hotkey for place in self._places):
            raise refusal("register", "HotKeyAlreadyRegisteredInSubNet", "already_exists")
        self._places.append(_Place(hotkey, coldkey, stake_rao, stake_rao >= PERMIT_STAKE_RAO))
        return Uid(len(self._places) - 1)

    def replace(self, uid: Uid, coldkey: str, hotkey: Hotkey) -> None:
        """Prune a neuron and give its place to another, as a full subnet does at each registration."""
        self._places[uid] = _Place(hotkey, coldkey, 0, False)
        for place in self._places:  # whoever set weights for the place did not mean the newcomer
            place.weights.pop(uid, None)

    def set_stake(self, hotkey: Hotkey, stake_rao: int) -> None:
        """Stake from nowhere, or to nowhere; the permit follows at the next epoch."""
        self._place(hotkey, "stake", "HotKeyNotRegisteredInSubNet").stake_rao = stake_rao

    def hand_over(self, owner: tuple[str, Hotkey]) -> None:
        """Another coldkey and hotkey own the subnet from now on."""
        self._owner = owner

    def serve_axon(self, hotkey: Hotkey, ip: str, port: int) -> None:
        """Publish an address."""
        place = self._place(hotkey, "serve axon", "HotKeyNotRegisteredInNetwork")
        if port == 0:
            raise refusal("serve axon", "InvalidPort", "invalid_argument")
        place.axon = f"{ip}:{port}"

    def set_weights(self, hotkey: Hotkey, weights: Mapping[Uid, float]) -> None:
        """Weights of a validator, normalised; sealed until the next epoch if the chain seals."""
        place = self._place(hotkey, "set weights", "HotKeyNotRegisteredInSubNet")
        has_set = bool(place.weights) or place.sealed is not None
        if has_set and self.block - place.last_update_block < self._rate_limit_blocks:
            raise refusal("set weights", "SettingWeightsTooFast", "rate_limited")
        if not place.has_permit:
            raise refusal("set weights", "NeuronNoValidatorPermit", "not_authorized")
        if not all(0 <= uid < len(self._places) for uid in weights):
            raise refusal("set weights", "UidVecContainInvalidOne", "invalid_argument")
        total = sum(weights.values())
        if not math.isfinite(total) or total <= 0 or min(weights.values()) < 0:
            raise ChainRefused("set weights: weights must be finite, not negative, and not all zero.")
        shares = {uid: weight / total for uid, weight in weights.items() if weight > 0}
        if self.has_commit_reveal:
            place.sealed = shares
        else:
            place.weights = shares
        place.last_update_block = self.block + 1  # the block that the transaction makes

    def commit(self, hotkey: Hotkey, text: str) -> None:
        """Publish text under a hotkey; it replaces what was there."""
        self._place(hotkey, "commit", "AccountNotAllowedCommit", "not_authorized")
        if len(text.encode()) > MAX_COMMITMENT_BYTES:
            raise ChainRefused(f"A commitment holds at most {MAX_COMMITMENT_BYTES} bytes.")
        self._commitments[hotkey] = text

    def _place(self, hotkey: Hotkey, what: str, name: str, kind: str = "not_registered") -> _Place:
        found = next((place for place in self._places if place.hotkey == hotkey), None)
        if found is None:
            raise refusal(what, name, kind)
        return found

    # --- reads

    def block_hash(self, number: int) -> str | None:
        """Blocks are final at once."""
        if not 0 <= number <= self.block:
            return None
        return "0x" + hashlib.sha256(f"{self.netuid}:{number}".encode()).hexdigest()

    def snapshot(self) -> ChainSnapshot:
        """A copy of everything at the newest block."""
        return ChainSnapshot(
            netuid=self.netuid,
            block=self.block,
            tempo_blocks=self._tempo_blocks,
            last_epoch_block=self._last_epoch_block,
            owner_hotkey=self._owner[1],
            owner_coldkey=self._owner[0],
            weights_rate_limit_blocks=self._rate_limit_blocks,
            neurons=tuple(_info(Uid(uid), place) for uid, place in enumerate(self._places)),
            commitments=dict(self._commitments),
            has_commit_reveal=self.has_commit_reveal,
            sealed_at_block={place.hotkey: place.last_update_block for place in self._places if place.sealed},
        )

    # --- epochs

    def _run_epoch(self) -> None:
        created = EMISSION_RAO_PER_BLOCK * (self.block - self._last_epoch_block)
        for place in self._places:
            if place.sealed is not None:
                place.weights, place.sealed = place.sealed, None
        voters = [place for place in self._places if place.has_permit and place.weights]
        stake = sum(place.stake_rao for place in voters)
        for uid, place in enumerate(self._places):
            votes = sum(voter.stake_rao * voter.weights.get(Uid(uid), 0.0) for voter in voters)
            place.incentive = votes / stake if stake else 0.0
            place.dividends = place.stake_rao / stake if place in voters else 0.0
        self._pay(created)
        for place in self._places:
            place.has_permit = place.stake_rao >= PERMIT_STAKE_RAO
        self._last_epoch_block = self.block

    def _pay(self, created: int) -> None:
        """Shares of nobody, and incentive of the owner's, are burnt; fractions of a rao likewise."""
        to_owner = created * OWNER_PERCENT // 100
        to_validators = (created - to_owner) // 2
        to_miners = created - to_owner - to_validators
        for place in self._places:
            incentive = 0 if place.coldkey == self._owner[0] else int(to_miners * place.incentive)
            place.emission_rao = incentive + int(to_validators * place.dividends)
            place.stake_rao += place.emission_rao
        self._places[0].stake_rao += to_owner


def _info(uid: Uid, place: _Place) -> NeuronInfo:
    return NeuronInfo(
        uid=uid,
        hotkey=place.hotkey,
        coldkey=place.coldkey,
        axon=place.axon,
        validator_permit=place.has_permit,
        stake_rao=place.stake_rao,
        incentive=place.incentive,
        dividends=place.dividends,
        emission_rao=place.emission_rao,
        last_update_block=place.last_update_block,
        weights=dict(place.weights),
    )


class MemoryChain:
    """``Chain`` of one hotkey on a ``MemoryLedgerChain``; an accepted transaction makes a block."""

    def __init__(self, ledger: MemoryLedgerChain, coldkey: str, hotkey: Hotkey) -> None:
        self._ledger = ledger
        self._coldkey = coldkey
        self._hotkey = hotkey

    async def snapshot(self) -> ChainSnapshot:
        """See ``Chain``."""
        return self._ledger.snapshot()

    async def block_hash(self, number: int) -> str | None:
        """See ``Chain``."""
        return self._ledger.block_hash(number)

    async def register(self) -> None:
        """See ``Chain``."""
        self._ledger.register(self._coldkey, self._hotkey)
        self._ledger.step()

    async def serve_axon(self, ip: str, port: int) -> None:
        """See ``Chain``."""
        self._ledger.serve_axon(self._hotkey, ip, port)
        self._ledger.step()

    async def set_weights(self, weights: Mapping[Uid, float], version_key: int) -> None:
        """See ``Chain``. The version key is not looked at: this chain demands none."""
        self._ledger.set_weights(self._hotkey, weights)
        self._ledger.step()

    async def commit(self, text: str) -> None:
        """See ``Chain``."""
        self._ledger.commit(self._hotkey, text)
        self._ledger.step()

    async def close(self) -> None:
        """See ``Chain``."""
