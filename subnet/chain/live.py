"""``Chain`` on subtensor, through the Bittensor SDK v11. The only importer of ``bittensor``.

The SDK's client has no timeouts and hangs for ever after a clean close of its websocket, so it lives in a ``Worker``:
each call has a deadline, and one that misses it costs the client, which is built anew for the next.
Not here: when to call. Invariants: a snapshot's reads are pinned to one block; a refusal by the chain keeps the client,
a lost connection costs it; every failure is a ``ChainError`` or ``DeadlineExceeded`` that says whether to try again.
Source: bittensor-v11.md, sections 1.3 and 3e.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import bittensor as bt

from subnet.chain.base import MAX_COMMITMENT_BYTES, ChainSnapshot, NeuronInfo
from subnet.chain.feed import NO_SUBNET
from subnet.chain.refusals import refusal
from subnet.chain.wallets import require_hotkey
from subnet.chain.worker import ClientLost, Worker
from subnet.errors import ChainError, ChainRefused, ChainUnreachable, DeadlineExceeded
from subnet.log import Event, event
from subnet.types import Hotkey, Uid

T = TypeVar("T")

PERIOD_BLOCKS = 32  # a transaction that is not included by then is invalid and may be sent again
NETWORKS_ADDED = ("SubtensorModule", "NetworksAdded")
RETRIES = 2  # two programs that share a hotkey make nonces stale
STUCK_AFTER_TICKS = 120  # of the watchdog: native code of the client takes milliseconds, its loop turns at once after
MAX_LEFT_THREADS = 8  # abandoned and not ended: one may be winding up, eight are a leak


@dataclass(frozen=True)
class Timeouts:
    """How long a call may take."""

    read_s: float = 20.0  # a metagraph takes 0.03 s on loopback and a few seconds over a public endpoint
    submit_s: float = 60.0  # two blocks of 12 s to be included, one to be final, and room for one retry


def load_wallet(path: Path, name: str, hotkey: str) -> Any:
    """A wallet whose hotkey lies on this machine; raises ``ConfigError``."""
    require_hotkey(path, name, hotkey)
    return bt.Wallet(name=name, hotkey=hotkey, path=str(path))


def create_wallet(path: Path, name: str, hotkey: str = "default") -> tuple[str, Hotkey]:
    """Make an unencrypted wallet for a network on one machine; returns its coldkey and hotkey addresses."""
    wallet = bt.Wallet(name=name, hotkey=hotkey, path=str(path))
    wallet.create_new_coldkey(use_password=False, overwrite=False, suppress=True)
    wallet.create_new_hotkey(use_password=False, overwrite=False, suppress=True)
    return str(wallet.coldkeypub.ss58_address), Hotkey(wallet.hotkey.ss58_address)


class LiveChain:
    """One subnet, seen and acted on by one wallet."""

    def __init__(self, endpoint: str, netuid: int, wallet: Any, timeouts: Timeouts | None = None) -> None:
        self._endpoint = endpoint
        self._netuid = netuid
        self._wallet = wallet
        self._timeouts = timeouts or Timeouts()
        self._worker: Worker[Any] = Worker(lambda: bt.Client(endpoint), _connect, _disconnect)
        self._is_failing = False

    # --- calls under a deadline

    async def _call(self, what: str, work: Callable[[Any], Awaitable[T]], timeout_s: float) -> T:
        """Run ``work`` on the client; a missed deadline or a lost connection costs the client."""
        try:
            result = await self._worker.call(work, timeout_s)
        except TimeoutError:
            self._failed(what, "deadline")
            raise DeadlineExceeded(f"The chain at {self._endpoint} did not answer {what} in {timeout_s:g} s.") from None
        except (bt.RpcConnectionError, OSError, ClientLost) as error:
            raise self._lost(what, _reason(error)) from None
        except ChainError:
            raise  # of our own
        except bt.ChainError as error:
            raise self._refused(what, error) from None
        except (bt.BittensorError, ValueError) as error:
            raise ChainRefused(
                f"{what}: {_reason(error)}.", remedy="The installed bittensor and this chain's runtime may not fit."
            ) from None
        if self._is_failing:
            self._is_failing = False
            event(Event.CHAIN_RESTORED, what=what)
        return result

    def _failed(self, what: str, reason: str) -> None:
        self._is_failing = True
        event(Event.CHAIN_FAILED, level=logging.WARNING, what=what, reason=reason)

    def _lost(self, what: str, reason: str) -> ChainUnreachable:
        self._worker.abandon()
        self._failed(what, "connection")
        return ChainUnreachable(f"The chain at {self._endpoint} cannot be reached for {what}: {reason}.")

    def _refused(self, what: str, error: Any) -> ChainError:
        """``error``: a ``bt.ChainError``, raised or reported."""
        found = refusal(what, error.name or "", error.code.value, error.message)
        return self._lost(what, error.message) if isinstance(found, ChainUnreachable) else found

    async def _submit(self, what: str, work: Callable[[Any], Awaitable[Any]]) -> None:
        result = await self._call(what, work, self._timeouts.submit_s)
        if not result.success:
            raise self._refused(what, result.error) if result.error else ChainRefused(f"{what}: {result.message}.")

    def stuck(self) -> str | None:
        """Why nothing but a new process helps, or None; to be asked by a ``Watchdog``, at every tick.

        A chain that is away or silent is none of these: its clients end in time.
        """
        vitals = self._worker.vitals()
        if vitals.num_vain >= STUCK_AFTER_TICKS:
            return f"a client of the chain has hung in native code for {vitals.num_vain} ticks"
        if vitals.num_left > MAX_LEFT_THREADS:
            return f"{vitals.num_left} abandoned clients of the chain do not end"
        return None

    async def close(self) -> None:
        """See ``Chain``."""
        self._worker.abandon()

    # --- reads

    async def read(self, what: str, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run a read of the caller's own on the SDK's client, under the deadline of a read; needs no wallet."""
        return await self._call(what, work, self._timeouts.read_s)

    async def snapshot(self) -> ChainSnapshot:
        """See ``Chain``."""
        return await self._call("snapshot", self._read_snapshot, self._timeouts.read_s)

    async def _read_snapshot(self, client: Any) -> ChainSnapshot:
        pinned = await client.at()
        graph = await pinned.subnets.metagraph(self._netuid)
        if graph is None:
            raise await self._no_subnet(pinned)
        weights = await pinned.weights.weights(netuid=self._netuid)
        parameters = await pinned.subnets.subnet_hyperparameters(netuid=self._netuid)
        is_sealing = bool(parameters["commit_reveal_weights_enabled"])
        sealed = await pinned.weights.timelocked_weight_commits(netuid=self._netuid) if is_sealing else {}
        return ChainSnapshot(
            netuid=self._netuid,
            block=int(pinned.block),
            tempo_blocks=int(graph.tempo),
            last_epoch_block=int(graph.last_step),
            owner_hotkey=Hotkey(graph.owner_hotkey),
            owner_coldkey=str(graph.owner_coldkey),
            weights_rate_limit_blocks=int(parameters["weights_rate_limit"]),
            neurons=tuple(_neuron(known, weights.get(known.uid, {})) for known in graph.neurons),
            commitments=_commitments(graph),
            has_commit_reveal=is_sealing,
            sealed_at_block=_newest_commits(sealed),
        )

    async def _no_subnet(self, pinned: Any) -> ChainRefused:
        """What to say of a netuid that this chain does not have."""
        rows = await pinned.query_map(NETWORKS_ADDED)
        known = ranges(sorted(int(netuid) for netuid, is_added in rows if is_added))
        return ChainRefused(
            f"There is no subnet {self._netuid} on {self._endpoint}; it has {known or 'none'}.",
            name="SubnetNotExists",
            kind=NO_SUBNET,
            remedy="Name one of them with --netuid, or another chain with --subtensor.network.",
        )

    async def block_hash(self, number: int) -> str | None:
        """See ``Chain``."""

        async def read(client: Any) -> str | None:
            if await client.finalized_block() < number:
                return None
            found = await client.block_info(number)
            return None if found is None else str(found.hash)

        return await self._call("block hash", read, self._timeouts.read_s)

    # --- transactions

    async def register(self) -> None:
        """See ``Chain``."""
        hotkey = self._wallet.hotkey.ss58_address
        call = bt.calls.SubtensorModule.burned_register(netuid=self._netuid, hotkey=hotkey)
        await self._submit("register", lambda client: self._submit_call(client, call, "coldkey"))

    async def serve_axon(self, ip: str, port: int) -> None:
        """See ``Chain``."""
        intent = bt.ServeAxon(netuid=self._netuid, ip=ip, port=port)
        await self._submit("serve axon", lambda client: self._execute(client, intent))

    async def set_weights(self, weights: Mapping[Uid, float], version_key: int) -> None:
        """See ``Chain``."""
        intent = bt.SetWeights(netuid=self._netuid, weights=dict(weights), version_key=version_key)
        await self._submit("set weights", lambda client: self._execute(client, intent))

    async def commit(self, text: str) -> None:
        """See ``Chain``."""
        data = text.encode()
        if len(data) > MAX_COMMITMENT_BYTES:
            raise ChainRefused(f"A commitment holds at most {MAX_COMMITMENT_BYTES} bytes.")
        info = {"fields": [[{f"Raw{len(data)}": data}]]}
        call = bt.calls.Commitments.set_commitment(netuid=self._netuid, info=info)
        await self._submit("commit", lambda client: self._submit_call(client, call, "hotkey"))

    async def _execute(self, client: Any, intent: Any) -> Any:
        return await client.execute(intent, self._wallet, period=PERIOD_BLOCKS, retries=RETRIES)

    async def _submit_call(self, client: Any, call: Any, signer: str) -> Any:
        """A raw call, sent again when its nonce was stale: the SDK does that for intents only."""
        for _ in range(RETRIES):
            result = await client.submit_call(call, self._wallet, signer=signer, period=PERIOD_BLOCKS)
            if result.success or result.error is None or result.error.code != bt.ErrorCode.EXPIRED:
                return result
            await asyncio.sleep(await client.block_time())
        return await client.submit_call(call, self._wallet, signer=signer, period=PERIOD_BLOCKS)


async def _connect(client: Any) -> None:
    await client.connect()


async def _disconnect(client: Any) -> None:
    await client.close()


def _reason(error: BaseException) -> str:
    text = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {text}"[:300]


def _neuron(known: Any, weights: Mapping[int, float]) -> NeuronInfo:
    return NeuronInfo(
        uid=Uid(int(known.uid)),
        hotkey=Hotkey(known.hotkey),
        coldkey=str(known.coldkey),
        axon=known.axon or "",
        validator_permit=bool(known.validator_permit),
        stake_rao=int(known.total_stake.rao),
        incentive=float(known.incentive),
        dividends=float(known.dividends),
        emission_rao=int(known.emission.rao),
        last_update_block=int(known.last_update),
        weights={Uid(int(uid)): float(weight) for uid, weight in weights.items()},
    )


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers as people write them: "0-2, 7"."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def _newest_commits(by_epoch: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[Hotkey, int]:
    found: dict[Hotkey, int] = {}
    for commits in by_epoch.values():
        for commit in commits:
            hotkey = Hotkey(commit["hotkey"])
            found[hotkey] = max(found.get(hotkey, 0), int(commit["commit_block"]))
    return found


def _commitments(graph: Any) -> dict[Hotkey, str]:
    found: dict[Hotkey, str] = {}
    for known in graph.neurons:
        commitment = known.commitment
        if commitment is not None and isinstance(commitment.value, str):
            found[Hotkey(known.hotkey)] = commitment.value
    return found
