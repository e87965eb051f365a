"""``liquid devchain``: the development chain as a program of its own.

Prints one JSON line, ``{"event": "listening", "url": "ws://..."}``, once it serves. SIGINT and SIGTERM end it. With a
state file it goes on where it was, however it ended; the genesis file then counts only the first time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from asyncio import FIRST_COMPLETED
from pathlib import Path

from subnet.errors import ConfigError
from subnet.localnet.devchain.chain import HISTORY_BLOCKS, DevChain, DevChainConfig
from subnet.localnet.devchain.genesis import apply_genesis, read_genesis
from subnet.localnet.devchain.rpc import serve_devchain


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="liquid devchain", description="A development chain for one machine.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=9944, help="port to listen on; 0 takes a free one")
    parser.add_argument("--block-time", type=float, default=0.25, help="seconds between blocks; 0: only on request")
    parser.add_argument("--tempo", type=int, default=20, help="blocks per epoch of new subnets")
    parser.add_argument("--genesis", type=Path, help="JSON file of accounts, subnets and neurons")
    parser.add_argument("--state", type=Path, help="file that keeps the chain between runs; new or from this program")
    parser.add_argument("--history", type=int, default=HISTORY_BLOCKS, help="blocks that stay readable")
    fault = "misbehave from the start: silent, lag_s=0.5, ... (repeatable; see devchain_fault)"
    parser.add_argument("--fault", action="append", default=[], metavar="NAME=VALUE", help=fault)
    return parser.parse_args(argv)


def _chain(arguments: argparse.Namespace) -> DevChain:
    """Raises ConfigError."""
    # Clients see the usual block time where blocks come by hand: it is part of the metadata, and zero breaks them.
    timing = {"block_time_s": arguments.block_time} if arguments.block_time else {}
    try:
        config = DevChainConfig(**timing, tempo_blocks=arguments.tempo, history_blocks=arguments.history)
        chain = DevChain(config, state_file=arguments.state)
        for text in arguments.fault:
            chain.faults.switch_text(text)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"A flag of the development chain cannot be used: {error}.") from None
    if arguments.genesis is not None and not chain.is_restored:
        apply_genesis(chain, read_genesis(arguments.genesis))
    chain.save()
    return chain


async def _serve(arguments: argparse.Namespace) -> None:
    chain = _chain(arguments)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    is_timed = arguments.block_time > 0
    async with serve_devchain(chain, arguments.host, arguments.port, is_timed) as server:
        sys.stdout.write(json.dumps({"event": "listening", "url": server.url}) + "\n")
        sys.stdout.flush()
        told = asyncio.create_task(stop.wait())
        await asyncio.wait({told} | ({server.producer} if server.producer else set()), return_when=FIRST_COMPLETED)
        told.cancel()
        if server.producer is not None and server.producer.done():
            await server.producer  # a chain that cannot make blocks ends with the reason, for others to see
    chain.close()


def main(argv: list[str]) -> int:
    """Run until told to stop."""
    asyncio.run(_serve(_arguments(argv)))
    return 0
