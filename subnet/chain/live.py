"""``Chain`` on subtensor, through the Bittensor SDK v11. The only importer of ``bittensor``.

The SDK's client has no timeouts and hangs for ever after a clean close of its websocket, so every call runs in a daemon
thread of its own under a deadline; a call that misses it costs the client, which is built anew for the next.
Not here: when to call. Invariants: no call outlives its deadline for the caller; one call at a time per client; nothing
is ever forked; an abandoned thread cannot keep the program alive.
Source: bittensor-v11.md, sections 1.3 and 3e.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import bittensor as bt

from subnet.chain.base import MAX_COMMITMENT_BYTES, ChainSnapshot, NeuronInfo
from subnet.errors import ChainError, ConfigError, DeadlineExceeded
from subnet.log import Event, event
from subnet.types import Hotkey, Uid

T = TypeVar("T")

READ_TIMEOUT_S = 20.0  # a metagraph takes 0.03 s on loopback and a few seconds over a public endpoint
SUBMIT_TIMEOUT_S = 60.0  # two blocks of 12 s to be included, one to be final, and room for one retry
PERIOD_BLOCKS = 32  # a transaction that is not included by then is invalid and may be sent again
RETRIES = 2  # two programs that share a hotkey make nonces stale


def load_wallet(path: Path, name: str, hotkey: str) -> Any:
    """A wallet whose hotkey lies on this machine; raises ``ConfigError``."""
    wallet = bt.Wallet(name=name, hotkey=hotkey, path=str(path))
    if not (path / name / "hotkeys" / hotkey).is_file():
        raise ConfigError(f"Wallet {name!r} in {path} has no hotkey {hotkey!r}.")
    return wallet


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
        self._client: Any = None
        self._turn = asyncio.Lock()

    # --- calls under a deadline

    async def _call(self, what: str, work: Callable[[Any], T], timeout_s: float) -> T:
        """Run ``work`` on the client in a thread; a missed deadline or a lost connection costs the client."""
        async with self._turn:
            answer: Future[T] = Future()
            client = self._client

            def run() -> None:
                nonlocal client
                try:
                    client = client or bt.Subtensor(self._endpoint)
                    answer.set_result(work(client))
                except BaseException as error:  # noqa: BLE001 - handed to the caller below
                    answer.set_exception(error)

            threading.Thread(target=run, name=f"chain {what}", daemon=True).start()
            try:
                result = await asyncio.wait_for(asyncio.wrap_future(answer), timeout_s)
            except TimeoutError:
                self._client = None
                event(Event.CHAIN_FAILED, level=logging.WARNING, what=what, reason="deadline")
                raise DeadlineExceeded(f"The chain did not answer {what} within {timeout_s:g} s.") from None
            except (bt.BittensorError, ValueError, OSError) as error:
                self._client = None
                raise ChainError(f"{what}: {_reason(error)}") from None
            self._client = client
            return result

    async def _submit(self, what: str, work: Callable[[Any], Any]) -> None:
        result = await self._call(what, work, SUBMIT_TIMEOUT_S)
        if not result.success:
            raise ChainError(f"{what}: {result.error.name if result.error else result.message}")

    async def close(self) -> None:
        """See ``Chain``."""
        client, self._client = self._client, None
        if client is not None:
            # Closing may hang like any other call; the thread is a daemon and is not waited for.
            threading.Thread(target=client.close, daemon=True).start()

    # --- reads

    async def snapshot(self) -> ChainSnapshot:
        """See ``Chain``."""
        return await self._call("snapshot", self._read_snapshot, READ_TIMEOUT_S)

    def _read_snapshot(self, client: Any) -> ChainSnapshot:
        graph = client.subnets.metagraph(self._netuid)
        if graph is None:
            raise ChainError(f"There is no subnet {self._netuid} on {self._endpoint}.")
        weights = client.weights.weights(netuid=self._netuid)
        limit = client.hyperparameters.weights_rate_limit(netuid=self._netuid)
        return ChainSnapshot(
            netuid=self._netuid,
            block=int(graph.block),
            tempo_blocks=int(graph.tempo),
            last_epoch_block=int(graph.last_step),
            owner_hotkey=Hotkey(graph.owner_hotkey),
            owner_coldkey=str(graph.owner_coldkey),
            weights_rate_limit_blocks=int(limit),
            neurons=tuple(_neuron(known, weights.get(known.uid, {})) for known in graph.neurons),
            commitments=_commitments(graph),
        )

    async def block_hash(self, number: int) -> str | None:
        """See ``Chain``."""

        def read(client: Any) -> str | None:
            if client.finalized_block < number:
                return None
            return str(client.block_info(number).hash)

        return await self._call("block hash", read, READ_TIMEOUT_S)

    # --- transactions

    async def register(self) -> None:
        """See ``Chain``."""
        hotkey = self._wallet.hotkey.ss58_address
        call = bt.calls.SubtensorModule.burned_register(netuid=self._netuid, hotkey=hotkey)
        await self._submit("register", lambda client: client.submit_call(call, self._wallet))

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
            raise ChainError(f"A commitment holds at most {MAX_COMMITMENT_BYTES} bytes.")
        info = {"fields": [[{f"Raw{len(data)}": data}]]}
        call = bt.calls.Commitments.set_commitment(netuid=self._netuid, info=info)
        await self._submit("commit", lambda client: client.submit_call(call, self._wallet, signer="hotkey"))

    def _execute(self, client: Any, intent: Any) -> Any:
        return client.execute(intent, self._wallet, period=PERIOD_BLOCKS, retries=RETRIES)


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
