"""How fast is training over home links, beside a pipeline of padded devices, and beside torch's pipelines there?

Four stages, one replica each, every miner in a network namespace of its own behind an uplink on which the dense
boundary of one microbatch (activation and gradient, bf16) takes ``TIMES`` times a stage's compute. Compute is padded to
a fixed time, so that two cores can stand for four devices. Arms, one after the other on the same hosts, without delay
and with ``DELAY_MS`` each way: our network; torch's 1F1B and GPipe with the dense boundary; both with our boundary
inside their stages. Every arm passes as many microbatches between two drains of its pipeline: a round here, a step
there. Padded ideal: (microbatches + stages - 1) x (forward + backward). ``speed_*`` keys compare TRAINING of our last
round with it, and with torch's better schedule; edges between rounds (commit, merge, next round) are reported beside.
Validity: at most ``MAX_LATE_SHARE`` of padded calls took longer by themselves, our processes used at most
``MAX_CPU_SHARE`` of the cores, and the router was at most ``MAX_ROUTER_LATE_MS`` late.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import bench_wan_net as net  # noqa: E402 (the path comes first)

NUM_STAGES = 4
TIMES = 5.0
# Of a learned boundary: with steps, scales and token ids 64 times fewer bytes than bf16 at this width.
BOUNDARY = {"dims": 22, "grad_stride": 4}
DELAY_MS = 50.0
PAYLOAD_SHARE = 1448 / net.MTU  # of what the bucket counts: TCP over IPv4 with timestamps
MAX_LATE_SHARE = 0.10
MAX_CPU_SHARE = 0.60
MAX_ROUTER_LATE_MS = 10.0
GLOO_PORT = 29500
TIME_LIMIT_S = {True: 1200.0, False: 3600.0}
ARM_TIMEOUT_S = 900.0
SCHEDULES = ("gpipe", "1f1b")
EXIT_CANNOT = 3
NICE = -10  # of all programs of all arms: together they want a third of the cores, but they want it at once

MODEL = {"width": 256, "num_blocks": 4, "num_heads": 4, "num_kv_heads": 2, "ffn_width": 352, "seq_len": 128}
PROGRAM = [sys.executable, str(Path(__file__).resolve())]


def make_run(arguments: argparse.Namespace) -> Any:
    """The run that all arms train."""
    from subnet.config import parse_run_config
    from subnet.data.corpus import load_corpus

    run = parse_run_config(
        {
            "name": "wan",
            "model": MODEL,
            "stages": {"num_stages": NUM_STAGES, "blocks": (1,) * NUM_STAGES},
            "boundary": {"kind": arguments.boundary, **BOUNDARY},
            "data": {"sequences": arguments.sequences},
            "round": {
                "microbatches": arguments.microbatches,
                "inner_steps": max(1, arguments.microbatches // 16),
                "min_replicas": 1,
                "training_timeout_s": ARM_TIMEOUT_S,
                "merging_timeout_s": ARM_TIMEOUT_S,
            },
            # A shard's upload shares a slow uplink with all others of its replica.
            "custody": {"request_timeout_s": 120.0},
        }
    )
    return run.with_values(**{"data.corpus_hash": load_corpus(run.data.source, run.data.held_out_share).digest})


def rate_bits_per_s(run: Any, arguments: argparse.Namespace) -> float:
    """The uplink: the dense boundary's bits of one microbatch in ``times`` times a stage's compute."""
    dense_bytes = 2 * 2 * run.model.width * run.microbatch_tokens
    compute_s = (arguments.forward_ms + arguments.backward_ms) / 1e3
    return 8 * dense_bytes / (arguments.times * compute_s) / PAYLOAD_SHARE


def ours(internet: net.Internet, run: Any, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Our arm."""
    import bench_wan_ours

    folder.mkdir(parents=True)
    swarm = bench_wan_ours.Swarm(internet, run, folder, PROGRAM)
    pads = (arguments.forward_ms / 1e3, arguments.backward_ms / 1e3)
    return swarm.play(arguments.rounds, pads, ARM_TIMEOUT_S)


def torch_arms(internet: net.Internet, run: Any, folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """All of torch's arms in one set of processes, the small boundary first, so that connections are warm."""
    import bench_wan_ours

    folder.mkdir(parents=True)
    # The first arm opens gloo's connections and is thrown away.
    arms = [["compressed", "gpipe", 2 * NUM_STAGES, 1]]
    arms += [["compressed", name, run.round.microbatches, arguments.steps] for name in SCHEDULES]
    arms += [["dense", name, run.round.microbatches, arguments.dense_steps] for name in SCHEDULES]
    plan = {
        "world": NUM_STAGES,
        "master": net.address(0),
        "port": GLOO_PORT,
        "timeout_s": ARM_TIMEOUT_S,
        "run": str(bench_wan_ours.write_run(run, folder)),
        "forward_s": arguments.forward_ms / 1e3,
        "backward_s": arguments.backward_ms / 1e3,
        "arms": arms,
    }
    logs = [(folder / f"rank-{rank}.log").open("w") for rank in range(NUM_STAGES)]
    for rank, log in enumerate(logs):
        internet.start(rank, [*PROGRAM, "torch", json.dumps({**plan, "rank": rank})], log)
    outputs = [child.communicate(timeout=ARM_TIMEOUT_S)[0].splitlines() for child in list(internet.children)]
    internet.stop()
    for log in logs:
        log.close()
    if any(len(lines) != len(arms) for lines in outputs):
        tails = "\n".join(path.read_text()[-1500:] for path in sorted(folder.glob("*.log")))
        raise SystemExit(f"torch's arms failed:\n{tails}")
    return [together([json.loads(lines[place]) for lines in outputs]) for place in range(1, len(arms))]


def together(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """One arm from what its ranks saw: a step lasts from the last rank's start to the last rank's end."""
    starts = [max(times) for times in zip(*(rank["began_s"] for rank in ranks), strict=True)]
    ends = [max(times) for times in zip(*(rank["ended_s"] for rank in ranks), strict=True)]
    steps_s = [end - start for start, end in zip(starts, ends, strict=True)]
    return {
        "arm": f"torch_{ranks[0]['arm']}",
        "seconds": sum(steps_s) / len(steps_s),
        "steps_s": steps_s,
        "cpu_share": sum(rank["cpu_s"] for rank in ranks) / sum(steps_s) / (os.cpu_count() or 1),
        "calls": sum(rank.get("calls", 0) for rank in ranks),
        "late": sum(rank.get("late", 0) for rank in ranks),
    }


def our_row(played: dict[str, Any]) -> dict[str, Any]:
    """Our arm as a row: the last round, whose in-flight depth was measured in the ones before."""
    *before, last = played["rounds"]
    row = {"arm": "ours", "seconds": last["train_s"], "cpu_share": played["cpu_share"]}
    row["edge_s"] = before[-1]["edge_s"]  # the one that led to the last round
    trained = [trained_round["train_s"] for trained_round in played["rounds"]]
    return {**row, "steps_s": trained, "calls": played["calls"], "late": played["late"]}


def variant(internet: net.Internet, run: Any, folder: Path, delay_ms: float, arguments: Any) -> dict[str, Any]:
    """All arms with one delay."""
    internet.set_delay(delay_ms)
    before, machine_at_start_s = internet.sent(), net.machine_busy_s()
    rows = [our_row(ours(internet, run, folder / "ours", arguments))]
    middle = internet.sent()
    if not arguments.only_ours:
        rows += torch_arms(internet, run, folder / "torch", arguments)
    tokens = run.round_tokens
    ideal_s = (run.round.microbatches + NUM_STAGES - 1) * (arguments.forward_ms + arguments.backward_ms) / 1e3
    for row in rows:
        row["tokens_per_s"] = tokens / row["seconds"]
        row["of_ideal"] = ideal_s / row["seconds"]
    sent = [after["bytes"] - start["bytes"] for start, after in zip(before, middle, strict=True)]
    return {
        "rows": rows,
        "ideal_s": ideal_s,
        "router": internet.set_delay(0.0),
        "our_bytes_sent": sent,
        "drops": sum(host["drops"] for host in internet.sent()) - sum(host["drops"] for host in before),
        "machine_busy_s": net.machine_busy_s() - machine_at_start_s,
    }


def figures(found: dict[str, Any], delay_ms: float, rate: float, tokens: int) -> dict[str, Any]:
    """The keys of one variant."""
    rows = {row["arm"]: row for row in found["rows"]}
    mine = rows["ours"]["tokens_per_s"]
    with_edges_s = rows["ours"]["seconds"] + rows["ours"]["edge_s"]

    def beside(kind: str) -> float | None:
        theirs = [row["tokens_per_s"] for name, row in rows.items() if name.startswith(f"torch_{kind}")]
        return mine / max(theirs) if theirs else None

    return {
        "speed_vs_ideal": rows["ours"]["of_ideal"],
        "speed_vs_torch_dense": beside("dense"),
        "speed_vs_torch_compressed": beside("compressed"),
        "speed_vs_ideal_with_edges": found["ideal_s"] / with_edges_s,
        "tokens_per_s_with_edges": tokens / with_edges_s,
        "edge_s": rows["ours"]["edge_s"],
        "rate_mbit": rate / 1e6,
        "delay_ms": delay_ms,
        "tokens_per_s": {name: row["tokens_per_s"] for name, row in rows.items()},
        "of_ideal": {name: row["of_ideal"] for name, row in rows.items()},
        "cpu_share": {name: row["cpu_share"] for name, row in rows.items()},
        "late_share": {name: row["late"] / max(1, row["calls"]) for name, row in rows.items()},
        "steps_s": {name: row["steps_s"] for name, row in rows.items()},
        "router": found["router"],
        "drops": found["drops"],
    }


def is_valid(part: dict[str, Any]) -> bool:
    """The rule of the module's docstring."""
    return (
        max(part["late_share"].values()) <= MAX_LATE_SHARE
        and max(part["cpu_share"].values()) <= MAX_CPU_SHARE
        and part["router"]["worst_late_ms"] <= MAX_ROUTER_LATE_MS
    )


def show(part: dict[str, Any]) -> None:
    """One variant's table."""
    print(f"\n{part['rate_mbit']:.2f} Mbit/s up, {part['delay_ms']:g} ms each way")
    print(f"{'arm':24} {'tokens/s':>9} {'of ideal':>9} {'cpu':>6} {'late':>6}  seconds")
    for name, speed in part["tokens_per_s"].items():
        seconds = " ".join(f"{value:.1f}" for value in part["steps_s"][name])
        shares = f"{part['of_ideal'][name]:9.3f} {part['cpu_share'][name]:6.1%} {part['late_share'][name]:6.1%}"
        print(f"{name:24} {speed:9.0f} {shares}  {seconds}")
    print(f"edge before our last round: {part['edge_s']:.1f} s; with it {part['tokens_per_s_with_edges']:.0f} tokens/s")
    router = part["router"]
    print(f"router: at most {router['worst_late_ms']:.1f} ms late, {part['drops']} drops at uplinks")


def bench(arguments: argparse.Namespace) -> None:
    """All variants; the table and the JSON line."""
    run = make_run(arguments)
    rate = rate_bits_per_s(run, arguments)
    result: dict[str, Any] = {}
    parts = []
    folder = Path(arguments.keep or os.environ[net.INSIDE])
    with net.Internet([*PROGRAM, "router"], NUM_STAGES + 1, NUM_STAGES, rate) as internet:
        for suffix, delay_ms in (("", 0.0), ("_delay", arguments.delay_ms)):
            if arguments.variant in ("both", suffix or "plain"):
                found = variant(internet, run, folder / f"delay{delay_ms:g}", delay_ms, arguments)
                parts.append(figures(found, delay_ms, rate, run.round_tokens))
                show(parts[-1])
                result.update({key + suffix: value for key, value in parts[-1].items()})
    settings = {"boundary": arguments.boundary, "times": arguments.times, "microbatches": arguments.microbatches}
    pads = {"forward_ms": arguments.forward_ms, "backward_ms": arguments.backward_ms}
    print(json.dumps({**result, **settings, **pads, "valid": all(is_valid(part) for part in parts)}))


def parse() -> argparse.Namespace:
    """The command line; what ``--quick`` shortens is settled here."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="shorter rounds and fewer steps; the same figures")
    parser.add_argument("--boundary", default="anchored", help="boundary.kind of the run")
    parser.add_argument("--times", type=float, default=TIMES, help="dense boundary over a stage's compute, in time")
    parser.add_argument("--delay-ms", type=float, default=DELAY_MS, help="one way, in the second variant")
    parser.add_argument("--forward-ms", type=float, default=60.0, help="a stage's padded forward")
    parser.add_argument("--backward-ms", type=float, default=120.0, help="a stage's padded backward")
    parser.add_argument("--sequences", type=int, default=2, help="sequences per microbatch")
    parser.add_argument("--microbatches", type=int, default=0, help="per round and step; 0: 48 quick, 64 otherwise")
    parser.add_argument("--only-ours", action="store_true", help="leave torch out")
    parser.add_argument("--variant", choices=("both", "plain", "_delay"), default="both", help="which delays to run")
    parser.add_argument("--keep", default="", help="keep the arms' folders here")
    arguments = parser.parse_args()
    arguments.microbatches = arguments.microbatches or (48 if arguments.quick else 64)
    arguments.rounds = 2 if arguments.quick else 3
    arguments.steps = 1 if arguments.quick else 3
    arguments.dense_steps = 1 if arguments.quick else 3
    return arguments


def main() -> int:
    """The bench, or one of the programs that it starts on a host."""
    if sys.argv[1:2] and not sys.argv[1].startswith("-"):
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
    match sys.argv[1:2]:
        case ["router"]:
            net.route([int(device) for device in sys.argv[2:]])
            return 0
        case ["torch"]:
            from bench_wan_torch import rank_program

            rank_program(json.loads(sys.argv[2]))
            return 0
        case ["miner"]:
            from bench_wan_ours import miner_program

            return miner_program(sys.argv[2:])
        case ["orchestrator"]:
            from neurons.orchestrator import main as orchestrator

            return orchestrator(sys.argv[2:])
    arguments = parse()
    try:
        code = net.enter(TIME_LIMIT_S[arguments.quick])
        if code is not None:
            return code
        bench(arguments)
    except net.CannotShape as error:
        print(f"bench wan needs hosts in network namespaces, and this machine makes none: {error}.", file=sys.stderr)
        print("Run it as root on Linux with iproute2, util-linux, TUN and tbf.", file=sys.stderr)
        return EXIT_CANNOT
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
