"""``liquid devchain``: the development chain as a program of its own.

Prints one JSON line, ``{"event": "listening", "url": "ws://..."}``, once it serves. SIGINT and SIGTERM end it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.genesis import apply_genesis, read_genesis
from subnet.localnet.devchain.rpc import serve_devchain


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="liquid devchain", description="A development chain for one machine.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9944, help="port to listen on; 0 takes a free one")
    parser.add_argument("--block-time", type=float, default=0.25, help="seconds between blocks")
    parser.add_argument("--tempo", type=int, default=20, help="blocks per epoch of new subnets")
    parser.add_argument("--genesis", type=Path, help="JSON file of accounts, subnets and neurons")
    return parser.parse_args(argv)


async def _serve(arguments: argparse.Namespace) -> None:
    chain = DevChain(DevChainConfig(block_time_s=arguments.block_time, tempo_blocks=arguments.tempo))
    if arguments.genesis is not None:
        apply_genesis(chain, read_genesis(arguments.genesis))
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with serve_devchain(chain, arguments.host, arguments.port) as server:
        sys.stdout.write(json.dumps({"event": "listening", "url": server.url}) + "\n")
        sys.stdout.flush()
        told = asyncio.create_task(stop.wait())
        assert server.producer is not None  # blocks come by the timer here
        await asyncio.wait({told, server.producer}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if server.producer.done():
            await server.producer  # a chain that cannot make blocks ends with the reason, for others to see


def main(argv: list[str]) -> int:
    """Run until told to stop."""
    asyncio.run(_serve(_arguments(argv)))
    return 0
