"""Where an engine computes: the device, its precision, and the way there and back.

A run names the kind of device whose arithmetic its audits repeat bit for bit; an operator may name one of that kind.
On a CPU all is fp32 and nothing is moved. On CUDA parameters and optimiser are fp32 and forwards run under bf16
autocast; what goes there passes through pinned memory.
A run may have its stages compiled: all of its machines, for that changes bits, and each pays for it at its start.
Not here: the engine. **Untested: everything that concerns CUDA. It was written on a machine without one.**
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from subnet.config import RunConfig
from subnet.errors import ConfigError

CPU = torch.device("cpu")
AUTO = "auto"


def find_device(run: RunConfig, wanted: str = AUTO) -> torch.device:
    """The device to compute on.

    Raises ``ConfigError`` where ``wanted`` is none of the run's kind or is not there, or where what the run compiles
    cannot be compiled.
    """
    if run.compiled and shutil.which(compiler := os.environ.get("CXX", "g++")) is None:
        raise ConfigError(
            f"This run compiles its stages, and there is no {compiler} here.",
            remedy="Install g++, or name another C++ compiler in CXX.",
        )
    name = run.device if wanted == AUTO else wanted
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{name!r} is no device of torch.", remedy="Name one such as cpu, cuda or cuda:1.") from error
    if device.type != run.device:
        raise ConfigError(
            f"This run computes on {run.device}, and {name} is none: audits repeat a miner's work bit for bit.",
            remedy=f"Leave the device at {AUTO!r}, or join a run of your kind of device.",
        )
    num_devices = torch.cuda.device_count() if device.type == "cuda" else 1
    if (device.index or 0) >= num_devices:
        raise ConfigError(
            f"There is no {name} here: torch sees {num_devices} devices of that kind.",
            remedy="Install a CUDA build of torch and a driver that it knows, or join a run that computes on cpu.",
        )
    return device


def make_repeatable(device: torch.device) -> None:
    """Have equal work give equal bits on CUDA; raises ``RuntimeError`` later, where an operation has no such way."""
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


def compile_stage(run: RunConfig, module: nn.Module) -> None:
    """Have torch.compile make a stage's forward and backward when it is first called. The same bits every time.

    Where it cannot, calls fail: an operation left to eager mode on one machine only would fail that machine's audits.
    """
    import torch._dynamo.config as tracing  # half a second that most programs need not spend
    import torch._inductor.config as making

    # An auditor has every stage. Beyond torch's own limit (8) calls would fail.
    tracing.recompile_limit = max(tracing.recompile_limit, 2 * run.stages.num_stages)
    making.compile_threads = 1  # no helper processes that somebody would have to end
    module.compile(dynamic=False, fullgraph=True)


def memory_bytes(device: torch.device, of_machine: int) -> int:
    """The memory that microbatches in flight share: the device's own, or the machine's."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else of_machine


def spent_s(device: torch.device) -> float:
    """A clock of the device's work. On a CPU this thread's processor time, so that the difference of two readings is
    the machine's own and not that of whatever else runs on it."""
    if device.type == "cpu":
        return time.thread_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bf16 for a forward's matrix products on CUDA; fp32 on a CPU, where bf16 is slower."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


def upload(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """Tensors of a body, on the device."""
    if device.type == "cpu":
        return dict(tensors)
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in tensors.items()}


def download(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors for a body, on the CPU."""
    return {name: tensor.cpu() for name, tensor in tensors.items()}
