"""``Chain`` on subtensor, through the Bittensor SDK v11. The only importer of ``bittensor``.

The SDK's client has no timeouts and hangs for ever after a clean close of its websocket, so it lives in a ``Worker``:
each call has a deadline, and one that misses it costs the client, which is built anew for the next.
Not here: when to call. Invariants: a snapshot's reads are pinned to one block; a refusal by the chain keeps the client,
a lost connection costs it; a chain that is away is an error of each call and nothing worse.
Source: bittensor-v11.md, sections 1.3 and 3e.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import bittensor as bt

from subnet.chain.base import MAX_COMMITMENT_BYTES, ChainSnapshot, NeuronInfo
from subnet.chain.worker import ClientLost, Worker
from subnet.errors import ChainError, ChainRefused, ConfigError, DeadlineExceeded
from subnet.log import Event, event
from subnet.types import Hotkey, Uid

T = TypeVar("T")

READ_TIMEOUT_S = 20.0  # a metagraph takes 0.03 s on loopback and a few seconds over a public endpoint
SUBMIT_TIMEOUT_S = 60.0  # two blocks of 12 s to be included, one to be final, and room for one retry
PERIOD_BLOCKS = 32  # a transaction that is not included by then is invalid and may be sent again
RETRIES = 2  # two programs that share a hotkey make nonces stale
STUCK_AFTER_S = 60.0  # a client's thread that was given up ends within seconds, unless foreign code blocks it
# What waiting can heal; all else the chain would refuse again.
PASSING = frozenset({bt.ErrorCode.RATE_LIMITED, bt.ErrorCode.TOO_EARLY, bt.ErrorCode.EXPIRED, bt.ErrorCode.UNKNOWN})


def load_wallet(path: Path, name: str, hotkey: str) -> Any:
    """A wallet whose hotkey lies on this machine; raises ``ConfigError``."""
    if not (path / name / "hotkeys" / hotkey).is_file():
        raise ConfigError(f"Wallet {name!r} in {path} has no hotkey {hotkey!r}.")
    return bt.Wallet(name=name, hotkey=hotkey, path=str(path))


def create_wallet(path: Path, name: str, hotkey: str = "default") -> tuple[str, Hotkey]:
    """Make an unencrypted wallet for a network on one machine; returns its coldkey and hotkey addresses."""
    wallet = bt.Wallet(name=name, hotkey=hotkey, path=str(path))
    wallet.create_new_coldkey(use_password=False, overwrite=False, suppress=True)
    wallet.create_new_hotkey(use_password=False, overwrite=False, suppress=True)
    return str(wallet.coldkeypub.ss58_address), Hotkey(wallet.hotkey.ss58_address)


class LiveChain:
    """One subnet, seen and acted on by one wallet."""

    def __init__(self, endpoint: str, netuid: int, wallet: Any) -> None:
        self._endpoint = endpoint
        self._netuid = netuid
        self._wallet = wallet
        self._worker: Worker[Any] = Worker(lambda: bt.Client(endpoint), _connect, _disconnect)
        self._is_away = False

    # --- calls under a deadline

    async def _call(self, what: str, work: Callable[[Any], Awaitable[T]], timeout_s: float) -> T:
        """Run ``work`` on the client; a missed deadline or a lost connection costs the client."""
        try:
            result = await self._worker.call(work, timeout_s)
        except TimeoutError:
            self._failed(what, "deadline")
            raise DeadlineExceeded(f"The chain did not answer {what} within {timeout_s:g} s.") from None
        except (bt.RpcConnectionError, OSError, ClientLost) as error:
            self._worker.abandon()
            self._failed(what, "connection")
            raise ChainError(f"{what}: {_reason(error)}") from None
        except (bt.BittensorError, ValueError) as error:
            self._answered()
            raise _refusal(f"{what}: {_reason(error)}", getattr(error, "code", None)) from None
        self._answered()
        return result

    def _failed(self, what: str, reason: str) -> None:
        """Say so once per outage."""
        event(Event.CHAIN_FAILED, level=logging.DEBUG if self._is_away else logging.WARNING, what=what, reason=reason)
        self._is_away = True

    def _answered(self) -> None:
        if self._is_away:
            event(Event.CHAIN_RESTORED)
        self._is_away = False

    def is_stuck(self, now_s: float) -> bool:
        """Whether a client's thread will not end: only a new process can get rid of it. Safe from any thread."""
        return self._worker.stuck_for_s(now_s) >= STUCK_AFTER_S

    async def _submit(self, what: str, work: Callable[[Any], Awaitable[Any]]) -> None:
        result = await self._call(what, work, SUBMIT_TIMEOUT_S)
        if not result.success:
            name = result.error.name if result.error else result.message
            raise _refusal(f"{what}: {name}", result.error.code if result.error else None)

    async def close(self) -> None:
        """See ``Chain``."""
        self._worker.abandon()

    # --- reads

    async def read(self, what: str, work: Callable[[Any], Awaitable[T]]) -> T:
        """Run a read of the caller's own on the SDK's client, under the deadline of a read; needs no wallet."""
        return await self._call(what, work, READ_TIMEOUT_S)

    async def snapshot(self) -> ChainSnapshot:
        """See ``Chain``."""
        return await self._call("snapshot", self._read_snapshot, READ_TIMEOUT_S)

    async def _read_snapshot(self, client: Any) -> ChainSnapshot:
        pinned = await client.at()
        graph = await pinned.subnets.metagraph(self._netuid)
        if graph is None:
            rows = await client.query_map(("SubtensorModule", "NetworksAdded"))
            known = ", ".join(str(netuid) for netuid in sorted(int(netuid) for netuid, _ in rows))
            raise ChainRefused(
                f"There is no subnet {self._netuid} on {self._endpoint}; there are: {known or 'none'}.",
                remedy="Name one of them with --netuid.",
            )
        weights = await pinned.weights.weights(netuid=self._netuid)
        parameters = await pinned.subnets.subnet_hyperparameters(netuid=self._netuid)
        has_commit_reveal = bool(parameters["commit_reveal_weights_enabled"])
        waiting = await pinned.weights.timelocked_weight_commits(netuid=self._netuid) if has_commit_reveal else {}
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
            has_commit_reveal=has_commit_reveal,
            sealed_at_block={
                Hotkey(commit["hotkey"]): int(commit["commit_block"])
                for epoch in sorted(waiting)
                for commit in waiting[epoch]
            },
        )

    async def block_hash(self, number: int) -> str | None:
        """See ``Chain``."""

        async def read(client: Any) -> str | None:
            if await client.finalized_block() < number:
                return None
            found = await client.block_info(number)
            return None if found is None else str(found.hash)

        return await self._call("block hash", read, READ_TIMEOUT_S)

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


def _refusal(text: str, code: Any) -> ChainError:
    return ChainError(text) if code in PASSING else ChainRefused(text)


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


def _commitments(graph: Any) -> dict[Hotkey, str]:
    found: dict[Hotkey, str] = {}
    for known in graph.neurons:
        commitment = known.commitment
        if commitment is not None and isinstance(commitment.value, str):
            found[Hotkey(known.hotkey)] = commitment.value
    return found
