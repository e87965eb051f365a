"""What a replica is made of, gathered once at start and handed to its parts.

Not here: any behaviour beyond running tensor work in its one thread.
Invariant: tensor work of one replica never runs in two threads at once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from subnet.clock import Clock
from subnet.config import RunConfig
from subnet.data.corpus import Corpus
from subnet.net.base import PeerAddress, Peers
from subnet.train.device import CPU
from subnet.types import Hotkey

T = TypeVar("T")


@dataclass(frozen=True)
class Site:
    """One miner's surroundings. ``data_dir`` holds journals and snapshots of this run and hotkey."""

    run: RunConfig
    hotkey: Hotkey
    owner: Hotkey  # hotkey of the run's owner, who signs round documents
    orchestrator: PeerAddress
    peers: Peers
    address_of: Callable[[Hotkey], PeerAddress]  # where another peer is reached now
    clock: Clock
    corpus: Corpus
    data_dir: Path
    executor: Executor  # one thread
    device: torch.device = CPU  # where its tensors are
    timer: Callable[[], float] = time.perf_counter  # seconds from any start; read in that thread

    async def compute(self, work: Callable[[], T]) -> T:
        """Run tensor work in the replica's thread; the caller is not cancelled in mid-work."""
        future = asyncio.get_running_loop().run_in_executor(self.executor, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
