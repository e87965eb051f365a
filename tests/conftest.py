"""What every test process gets before anything of ours, torch or bittensor is imported.

One computing thread, since test processes share the cores, and a throw-away home: bittensor writes wallets and caches
below it. Set at import, not in a fixture, because the libraries read these variables when they are imported. torch
itself is not imported here; most tests do without it.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"

_HOME = Path(tempfile.mkdtemp(prefix="liquid-tests-"))
atexit.register(shutil.rmtree, _HOME, ignore_errors=True)
os.environ["HOME"] = str(_HOME)
os.environ["BITTENSOR_RUNTIME_CACHE_DIR"] = str(_HOME / "runtime-cache")
os.environ["BTCLI_TOKEN_SYMBOLS_CACHE"] = str(_HOME / "token-symbols.json")

# No deadline per example: on shared cores it measures the neighbours. Fixed seeds: a red run is red again.
settings.register_profile("liquid", deadline=None, derandomize=True)
settings.load_profile("liquid")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests marked `gpu` where there is no CUDA device; imports torch only if there are such tests."""
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
