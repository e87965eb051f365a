"""What does the way over a relay cost?

Arms, interleaved (direct, relay, relay, direct): a network of two stages, all of whose miners are reached directly, or
all through the orchestrator's relay; each is an orchestrator and one miner per stage as separate programs with signed
HTTP between them. ``slowdown`` is tokens/s of the direct networks over tokens/s of the relayed ones, each the mean of
its runs. Beside it, the median time of one request to a peer, direct and through a relay, interleaved: a small one
(200 bytes each way), and 4 MB there or back; caller, relay and peer share one process and its loop, so that these
figures hold all the work and none of a network's delay.
Validity: the two networks of each kind must agree within ``MAX_SPREAD``, or the machine was too busy with other things.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from subnet.net.auth import Verifier, dev_signer  # noqa: E402
from subnet.net.base import RELAY_PREFIX, PeerAddress, Request, Response, relay_url, reply  # noqa: E402
from subnet.net.client import HttpPeers  # noqa: E402
from subnet.net.outbound import behind_relay  # noqa: E402
from subnet.net.relay import Relay, RelayLimits  # noqa: E402
from subnet.net.server import serve  # noqa: E402

MAX_SPREAD = 0.15
SMALL, LARGE = bytes(200), bytes(4_000_000)
CAPS = {"/v1/forward": 2 * len(LARGE)}
TIMEOUT_S = 30.0
# As many microbatches in flight as 1F1B needs, so that a longer way is hidden as far as the pipeline can hide it.
SETTINGS = ["--set", "round.in_flight=0", "--boundary", "int8"]


def network(rounds: int, is_relayed: bool) -> float:
    """Tokens/s of a network of two stages."""
    command = [sys.executable, "-m", "neurons.cli", "localnet", "--no-chain", "--validators", "0", "--replicas", "1"]
    command += ["--stages", "2", "--rounds", str(rounds), "--json", *SETTINGS, *(["--relay", "all"] * is_relayed)]
    # So few rounds do not learn what the summary claims, so its exit code says nothing here.
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"the network failed:\n{done.stderr[-2000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_s"])


async def answer(request: Request) -> Response:
    """What the peer under test answers: as much as it is asked for."""
    return reply(LARGE if request.path == "/v1/shards" else SMALL)


async def timed(peers: HttpPeers, to: PeerAddress, method: str, path: str, body: bytes) -> float:
    """Seconds of one request."""
    began_s = time.perf_counter()
    await peers.request(to, method, path, body, timeout_s=TIMEOUT_S)
    return time.perf_counter() - began_s


async def latencies(repeats: int) -> dict[str, float]:
    """Medians in milliseconds, by request and way."""
    operator, peer = dev_signer("//relay"), dev_signer("//peer")
    verifier = Verifier(operator.hotkey)
    relay = Relay(verifier, lambda hotkey: True, RelayLimits(max_body_bytes=CAPS["/v1/forward"]))
    async with AsyncExitStack() as stack:
        hub = await stack.enter_async_context(serve(answer, verifier, "127.0.0.1", 0, relay=relay))
        there = await stack.enter_async_context(serve(answer, Verifier(peer.hotkey), "127.0.0.1", 0, CAPS))
        at = PeerAddress(operator.hotkey, f"http://127.0.0.1:{hub.port}{RELAY_PREFIX}")
        await stack.enter_async_context(behind_relay(there.gate, peer, at))
        peers = HttpPeers(dev_signer("//caller"))
        stack.push_async_callback(peers.aclose)
        ways = {"direct": f"http://127.0.0.1:{there.port}", "relay": relay_url(at.url, peer.hotkey)}
        kinds = {
            "small": ("POST", "/v1/status", SMALL, 5 * repeats),
            "large_there": ("POST", "/v1/forward", LARGE, repeats),
            "large_back": ("GET", "/v1/shards", b"", repeats),
        }
        medians = {}
        for kind, (method, path, body, count) in kinds.items():
            times: dict[str, list[float]] = {way: [] for way in ways}
            for number in range(count + 1):
                for way, url in ways.items():
                    took_s = await timed(peers, PeerAddress(peer.hotkey, url), method, path, body)
                    times[way] += [took_s] if number else []  # the first opens the connection
            medians |= {f"{kind}_{way}_ms": 1e3 * statistics.median(found) for way, found in times.items()}
        return medians


def main() -> None:
    """Run all arms, print the table and the JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="fewer rounds; the same figures")
    arguments = parser.parse_args()
    rounds, repeats = (1, 20) if arguments.quick else (4, 60)
    milliseconds = asyncio.run(latencies(repeats))
    speeds: dict[str, list[float]] = {"direct": [], "relay": []}
    for way in ("direct", "relay", "relay", "direct"):
        speeds[way].append(network(rounds, way == "relay"))
    direct, relay = (statistics.mean(speeds[way]) for way in ("direct", "relay"))
    spread = max((max(found) - min(found)) / statistics.mean(found) for found in speeds.values())
    print(f"{'':24} {'direct':>10} {'relay':>10} {'ratio':>7}")
    print(f"{'two stages, tokens/s':24} {direct:10.0f} {relay:10.0f} {direct / relay:7.3f}")
    for kind, text in (("small", "200 B, ms"), ("large_there", "4 MB there, ms"), ("large_back", "4 MB back, ms")):
        pair = milliseconds[f"{kind}_direct_ms"], milliseconds[f"{kind}_relay_ms"]
        print(f"{text:24} {pair[0]:10.2f} {pair[1]:10.2f} {pair[1] / pair[0]:7.3f}")
    print(f"networks of one kind spread over {spread:.1%} (valid up to {MAX_SPREAD:.0%})")
    figures = {
        "slowdown": direct / relay,
        "tokens_per_s_direct": speeds["direct"],
        "tokens_per_s_relay": speeds["relay"],
        **milliseconds,
        "cores": os.cpu_count() or 1,
        "spread": spread,
        "valid": spread <= MAX_SPREAD,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
