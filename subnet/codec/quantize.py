"""Integers for floats, and several small integers in one byte.

int8: symmetric, one fp32 scale per token. Digits: values 0..base-1, as many to a byte as fit.
Invariants: zero stays zero in int8; an all-zero row has scale 1; the error of an int8 value is at most half its row's
scale; ``unpack_digits(pack_digits(x)) == x``; results depend on nothing but the values (round half to even).
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 127
BYTE = 256


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


def digits_per_byte(base: int) -> int:
    """How many digits of ``base`` (2 to 256) a byte holds: 8 of base 2, 5 of base 3, 4 of base 4, 2 of base 16."""
    count = 1
    while base ** (count + 1) <= BYTE:
        count += 1
    return count


def packed_width(num_digits: int, base: int) -> int:
    """Bytes that ``num_digits`` digits take."""
    return -(-num_digits // digits_per_byte(base))


def pack_digits(digits_BTK: Tensor, base: int) -> Tensor:
    """uint8 [B,T,packed_width]; digits are whole numbers from 0 to ``base - 1`` in any dtype."""
    count = digits_per_byte(base)
    padding = -digits_BTK.shape[-1] % count
    padded = torch.nn.functional.pad(digits_BTK.to(torch.int32), (0, padding))
    places = base ** torch.arange(count, dtype=torch.int32, device=digits_BTK.device)
    grouped = padded.view(*padded.shape[:-1], -1, count)
    return (grouped * places).sum(-1).to(torch.uint8)


def unpack_digits(packed_BTW: Tensor, base: int, num_digits: int) -> Tensor:
    """int32 digits [B,T,num_digits]. A stranger's byte of any value gives digits in range."""
    places = base ** torch.arange(digits_per_byte(base), dtype=torch.int32, device=packed_BTW.device)
    digits = torch.div(packed_BTW.to(torch.int32)[..., None], places, rounding_mode="floor") % base
    return digits.flatten(-2)[..., :num_digits]
