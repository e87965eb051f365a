"""Somebody in the owner's place, on the network but not on the chain: no replica plays a round that he opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from subnet.clock import run_virtual
from subnet.errors import Forbidden
from subnet.net.auth import Signer, dev_signer
from subnet.types import Hotkey
from tests.swarm.harness import Net, network
from tests.tiny import text_corpus, tiny_run


class Impostor:
    """Answers under the owner's hotkey, and signs with a key of its own."""

    def __init__(self, owner: Hotkey) -> None:
        self.hotkey = owner
        self._key: Signer = dev_signer("//impostor")

    def sign(self, data: bytes) -> str:
        return self._key.sign(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._key, name)


def test_a_round_that_the_owner_on_chain_did_not_sign_is_not_played(tmp_path: Path) -> None:
    corpus = text_corpus()
    run = tiny_run(corpus, **{"round.min_replicas": 1})

    async def main() -> Net:
        async with network(tmp_path, run, corpus, rounds=1) as net:
            await net.stop_orchestrator()
            net.owner = Impostor(net.owner.hotkey)  # type: ignore[assignment]
            await net.start_orchestrator(1)
            miners = [net.start_miner(f"miner-{number}") for number in range(1, 4)]
            tasks = [miner.task for miner in miners if miner.task is not None]
            await asyncio.wait(tasks, timeout=120, return_when=asyncio.FIRST_COMPLETED)
            [ended, *_] = [task for task in tasks if task.done()]
            with pytest.RaisesGroup(pytest.RaisesExc(Forbidden, match="not signed by the subnet's owner")):
                ended.result()
            return net

    net = run_virtual(main())
    assert net.orchestrator is not None
    view = net.orchestrator.view
    assert not view.closed, "nobody contributed to it"
