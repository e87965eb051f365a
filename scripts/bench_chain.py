"""How fast is the development chain with a full subnet: reads, epochs, blocks, memory, restart?

One subnet with 256 neurons, 64 of them validators that all set 256 weights in every epoch. Reads go through the
unmodified SDK to a chain in a process of its own, and through a bare `state_call` in this one. Blocks are stepped by
hand; memory is the resident size of this process before and after, with a history that has filled up at the first
figure, so that a leak is what is left over. Targets are printed beside the figures; a figure over its target fails.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bittensor_core as core  # noqa: E402

from subnet.localnet.devchain import runtime_api  # noqa: E402
from subnet.localnet.devchain.chain import DevChain, DevChainConfig  # noqa: E402
from subnet.localnet.devchain.genesis import Genesis, GenesisNeuron, GenesisSubnet, apply_genesis  # noqa: E402

NUM_UIDS, NUM_VALIDATORS = 256, 64
TEMPO_BLOCKS = 20
STAKE_RAO = 10**12
PALLET = "SubtensorModule"
TARGETS_MS = {"metagraph_sdk_ms": 100.0, "metagraph_state_call_ms": 100.0, "epoch_ms": 200.0}
MAX_GROWTH_MIB = 8.0  # of memory, over the measured blocks


def address(name: str) -> str:
    return str(core.Keypair.create_from_uri(f"//bench/{name}").ss58_address)


def full_subnet() -> Genesis:
    neurons = [
        GenesisNeuron(
            coldkey=address("cold"), hotkey=address(str(uid)), stake_rao=STAKE_RAO + uid if uid <= NUM_VALIDATORS else 0
        )
        for uid in range(1, NUM_UIDS)
    ]
    settings: dict[str, int | bool] = {"Tempo": TEMPO_BLOCKS, "WeightsSetRateLimit": 0}
    subnet = GenesisSubnet(
        owner_coldkey=address("owner"), owner_hotkey=address("0"), settings=settings, neurons=neurons
    )
    return Genesis(accounts={address("cold"): 10**15}, subnets=[subnet])


def new_chain(history_blocks: int, state_file: Path | None = None) -> DevChain:
    clock = itertools.count(1_700_000_000_000, 250)
    chain = DevChain(DevChainConfig(history_blocks=history_blocks), lambda: next(clock), state_file)
    apply_genesis(chain, full_subnet())
    return chain


def vote(chain: DevChain) -> None:
    """Every validator's weights, by transactions."""
    for uid in range(1, NUM_VALIDATORS + 1):
        pair = core.Keypair.create_from_uri(f"//bench/{uid}")
        values = [1 + dest * (uid + chain.head.number) % 97 for dest in range(NUM_UIDS)]
        call = {"netuid": 1, "mecid": 0, "dests": list(range(NUM_UIDS)), "weights": values, "version_key": 0}
        data = bytes(chain.runtime.compose_call(PALLET, "set_mechanism_weights", call))
        nonce = chain.next_nonce(pair.ss58_address)
        carried: dict[str, Any] = {"era": "00", "nonce": nonce, "tip": 0, "tip_asset_id": None}
        genesis = bytes.fromhex(chain.blocks[0].hash[2:])
        payload = chain.runtime.signature_payload(data, **carried, genesis_hash=genesis, era_block_hash=genesis)
        signature = pair.sign(bytes(payload))
        signed = {"public_key": pair.public_key, "signature": signature, "signature_version": 1}
        chain.submit(bytes(chain.runtime.encode_signed_extrinsic(data, **signed, **carried)[0]))


def timed_ms(work: Callable[[], Any], repeats: int) -> float:
    """Median."""
    figures = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        figures.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(figures)


def resident_mib() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def sdk_reads(repeats: int) -> dict[str, float]:
    """From a chain in a process of its own, at the newest block and pinned to an earlier one."""
    os.environ.setdefault("BITTENSOR_RUNTIME_CACHE_DIR", tempfile.mkdtemp(prefix="liquid-bench-"))
    import bittensor as bt

    with tempfile.TemporaryDirectory(prefix="liquid-bench-") as folder:
        genesis = Path(folder) / "genesis.json"
        genesis.write_text(full_subnet().model_dump_json())
        command = [sys.executable, "-m", "neurons.cli", "devchain", "--port", "0", "--block-time", "1"]
        with subprocess.Popen(
            [*command, "--genesis", str(genesis)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None
                with bt.Subtensor(json.loads(process.stdout.readline())["url"]) as client:
                    assert client.subnets.metagraph(1).num_uids == NUM_UIDS
                    whole = timed_ms(lambda: client.subnets.metagraph(1), repeats)
                    short = timed_ms(lambda: client.subnets.metagraph(1, commitments=False), repeats)
            finally:
                process.terminate()
    return {"metagraph_sdk_ms": whole, "metagraph_sdk_without_commitments_ms": short}


def own_reads(chain: DevChain, repeats: int) -> dict[str, float]:
    def single(back: int) -> Any:
        view = chain.state.at(chain.head.number - back)
        assert view is not None
        return view.get("System", "Number")

    def read(back: int) -> Callable[[], Any]:
        def answer() -> bytes:
            view = chain.state.at(chain.head.number - back)
            assert view is not None
            return runtime_api.answer(view, "SubnetInfoRuntimeApi", "get_metagraph", b"\1\0")

        return answer

    deep = len(chain.state.overwritten) - 1
    return {
        "metagraph_state_call_ms": timed_ms(read(0), repeats),
        "metagraph_ten_blocks_back_ms": timed_ms(read(10), repeats),
        "metagraph_oldest_block_ms": timed_ms(read(deep), max(3, repeats // 4)),
        "single_read_oldest_block_ms": timed_ms(lambda: single(deep), repeats),
        "oldest_blocks_back": deep,
    }


def blocks(chain: DevChain, num_epochs: int) -> dict[str, float]:
    """A vote and an epoch in every tempo; each kind of block by its median."""
    kinds: dict[str, list[float]] = {"epoch_ms": [], "epoch_cpu_ms": [], "vote_block_ms": [], "quiet_block_ms": []}
    for _ in range(num_epochs * TEMPO_BLOCKS):
        kind = "epoch_ms" if (chain.head.number + 1) % TEMPO_BLOCKS == 0 else "quiet_block_ms"
        if chain.head.number % TEMPO_BLOCKS == TEMPO_BLOCKS // 2:
            vote(chain)
            kind = "vote_block_ms"
        began_s, cpu_s = time.perf_counter(), time.process_time()
        chain.produce()
        kinds[kind].append((time.perf_counter() - began_s) * 1000)
        if kind == "epoch_ms":  # apart from what others do on this machine
            kinds["epoch_cpu_ms"].append((time.process_time() - cpu_s) * 1000)
    rows = chain.state.values(PALLET, "Weights")
    assert [len(row) for row in rows] == [NUM_UIDS] * NUM_VALIDATORS, "not every validator's weights are in"
    paid = chain.payments[1]
    assert paid.burnt < paid.created // 100, "the owner's neurons are not paid, others are"
    figures = {kind: statistics.median(times) for kind, times in kinds.items()}
    quiet, epoch = figures["quiet_block_ms"], figures["epoch_ms"]
    figures["blocks_per_s"] = 1000 * TEMPO_BLOCKS / (quiet * (TEMPO_BLOCKS - 1) + epoch)
    return figures


def memory(num_epochs: int, history_blocks: int) -> tuple[DevChain, dict[str, float]]:
    """Growth beyond a history that is already full, and what a full one takes; the chain as it is then."""
    chain = new_chain(history_blocks)
    empty = resident_mib()
    blocks(chain, 1 + history_blocks // TEMPO_BLOCKS)
    full = resident_mib()
    blocks(chain, num_epochs)
    return chain, {
        "history_blocks": history_blocks,
        "history_mib": full - empty,
        "memory_growth_mib": resident_mib() - full,
        "memory_growth_over_blocks": num_epochs * TEMPO_BLOCKS,
    }


def on_disk(num_epochs: int, history_blocks: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="liquid-bench-") as folder:
        path = Path(folder) / "chain.db"
        chain = new_chain(history_blocks, path)
        figures = blocks(chain, num_epochs)
        chain.close()
        began_s = time.perf_counter()
        again = DevChain(DevChainConfig(history_blocks=history_blocks), state_file=path)
        restart_ms = (time.perf_counter() - began_s) * 1000
        assert again.head == chain.head
        again.close()
        saved = {f"saved_{name}": figures[name] for name in ("epoch_ms", "vote_block_ms", "quiet_block_ms")}
        return {**saved, "restart_ms": restart_ms, "state_file_mib": path.stat().st_size / 2**20}


def main() -> None:
    """Measure, print the table and the JSON line; exit code 1 for a figure over its target."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer repeats and blocks; the same figures")
    is_quick = parser.parse_args().quick
    repeats, num_epochs, history = (10, 4, 200) if is_quick else (30, 50, 4096)
    # Memory first: what an earlier chain freed would hide growth.
    chain, figures = memory(num_epochs, history)
    figures |= blocks(chain, num_epochs)
    figures |= own_reads(chain, repeats)
    del chain
    figures |= sdk_reads(repeats)
    figures |= on_disk(num_epochs, history)
    late = [name for name, target in TARGETS_MS.items() if figures[name] > target]
    is_flat = figures["memory_growth_mib"] <= MAX_GROWTH_MIB
    print(f"{'figure':38} {'value':>10} {'target':>8}")
    for name, value in figures.items():
        target = TARGETS_MS.get(name) or (MAX_GROWTH_MIB if name == "memory_growth_mib" else None)
        print(f"{name:38} {value:10.2f} {'' if target is None else f'{target:8.0f}'}")
    print(json.dumps({**figures, "neurons": NUM_UIDS, "validators": NUM_VALIDATORS, "valid": not late and is_flat}))
    raise SystemExit(0 if not late and is_flat else 1)


if __name__ == "__main__":
    main()
