"""Integers for floats: symmetric int8 with one fp32 scale per token.

Invariants: zero stays zero; an all-zero row has scale 1; the error of a value is at most half its row's scale; the
result depends on nothing but the values (round half to even).
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127


def quantize_int8(values_BTD: Tensor) -> tuple[Tensor, Tensor]:
    """int8 [B,T,D] and fp32 scales [B,T,1]."""
    peak_BT1 = values_BTD.abs().amax(dim=-1, keepdim=True)
    scale_BT1 = torch.where(peak_BT1 > 0, peak_BT1 / LARGEST, torch.ones_like(peak_BT1))
    # A subnormal peak divided by 127 may be zero; its row is then as good as zero.
    scale_BT1 = torch.where(scale_BT1 > 0, scale_BT1, torch.ones_like(scale_BT1))
    levels = torch.round(values_BTD / scale_BT1).clamp_(-LARGEST, LARGEST)
    return levels.to(torch.int8), scale_BT1


def dequantize_int8(levels_BTD: Tensor, scale_BT1: Tensor) -> Tensor:
    """fp32 [B,T,D]."""
    return levels_BTD.to(torch.float32) * scale_BT1
