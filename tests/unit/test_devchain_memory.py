"""A chain that runs for long takes no more memory than one whose history has just filled up."""

from __future__ import annotations

import gc
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest

from subnet.localnet.devchain import chain as chain_module
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.extrinsics import InvalidTransaction
from subnet.localnet.devchain.pallet_shield import PLACES
from tests.unit.devchain_actors import (
    ALICE,
    BOB,
    DAVE,
    MINER,
    OWNER,
    STAKE_RAO,
    VALIDATOR,
    axon,
    transfer,
    weights,
)

HISTORY = 64
TEMPO = 8


def busy_chain(state_file: Path | None = None) -> DevChain:
    clock = itertools.count(1_700_000_000_000, 250)
    chain = DevChain(DevChainConfig(history_blocks=HISTORY), lambda: next(clock), state_file)
    chain.add_subnet(ALICE.address, OWNER.address, WeightsSetRateLimit=0, Tempo=TEMPO)
    chain.register(1, BOB.address, VALIDATOR.address)
    chain.register(1, DAVE.address, MINER.address)
    chain.set_stake(1, VALIDATOR.address, STAKE_RAO)
    return chain


def run(chain: DevChain, num_blocks: int, told: Any) -> None:
    """Each tempo has transfers, a failing one, an axon and weights, and a transaction that expires unused."""
    assert num_blocks % TEMPO == 0
    for number in range(num_blocks):
        place = number % TEMPO
        if place in (1, 2):
            chain.submit(BOB.signed(chain, transfer(DAVE, 1000 if place == 1 else 10**17)), told)
        elif place == 3:
            chain.submit(MINER.signed(chain, axon(0x7F000001, 1 + number % 60_000)))
        elif place == 4:
            chain.submit(VALIDATOR.signed(chain, weights([1, 2], [1 + number % 50, 9])))
        elif place == 5:
            head = chain.head.number
            era = {"period": 4, "phase": head % 4}
            early = chain.next_nonce(DAVE.address) + 1
            chain.submit(DAVE.signed_in_era(chain, transfer(BOB, 1000), era, head, early), told)
        chain.produce()


def sizes(chain: DevChain) -> dict[str, int]:
    state = chain.state
    return {
        "blocks": len(chain.blocks),
        "numbers": len(chain.numbers),
        "items": sum(map(len, state.items.values())),
        "journals": len(state.overwritten),
        "overwritten": sum(map(len, state.overwritten)),
        "unsaved": len(state.unsaved or ()),
        "pool": len(chain.pool.waiting),
        "not final": len(chain.finality.open),
        "payments": len(chain.payments),
        "keys known": state.codec.entry.cache_info().currsize,  # type: ignore[attr-defined]
    }


@pytest.mark.slow
def test_memory_is_flat_once_the_history_is_full(tmp_path: Path) -> None:
    chain = busy_chain(tmp_path / "chain.db")
    statuses = {"inBlock": 0, "finalized": 0, "invalid": 0}

    def told(status: Any) -> None:
        statuses[next(iter(status)) if isinstance(status, dict) else status] += 1

    def measured() -> tuple[dict[str, int], int, int]:
        """All containers of the process and what they take without their contents: a leak makes one of them grow."""
        gc.collect()
        containers = gc.get_objects()
        return sizes(chain), len(containers), sum(map(sys.getsizeof, containers))

    run(chain, 30 * TEMPO, told)
    before, objects, container_bytes = measured()
    run(chain, 220 * TEMPO, told)
    after, more_objects, more_bytes = measured()
    assert chain.head.number == 2000
    assert statuses == {"inBlock": 500, "finalized": 500, "invalid": 249}  # the last one still waits
    # Within the history the shield's keys may have changed once more, or once less.
    assert abs(after.pop("overwritten") - before.pop("overwritten")) <= 2 * TEMPO * len(PLACES)
    assert after == before
    assert more_objects - objects < 200
    assert more_bytes - container_bytes < 12_000, "less than one pointer per block"


def test_a_withheld_finality_does_not_grow_memory() -> None:
    chain = busy_chain()
    chain.faults.unfinalised = True
    run(chain, 30 * TEMPO, None)
    before = sizes(chain)
    run(chain, 20 * TEMPO, None)
    assert sizes(chain) == before
    assert before["not final"] == HISTORY - 1


def test_the_pool_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_module, "POOL_BYTES", 3000)
    chain = busy_chain()
    remark = ("System", "remark", {"remark": [7] * 1000})
    for nonce in (1, 2):  # ahead of the account's: they would wait for ever
        chain.submit(BOB.signed(chain, remark, nonce))
    with pytest.raises(InvalidTransaction) as refused:
        chain.submit(BOB.signed(chain, remark, 3))
    assert refused.value.code == 1016
