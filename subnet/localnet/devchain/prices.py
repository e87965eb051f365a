"""The price of a neuron: it decays in every block and jumps with every registration.

Per block `Burn` is multiplied by the factor that halves it in BurnHalfLife blocks, per registration by
BurnIncreaseMult; it stays between MinBurn and MaxBurn. Whole numbers only: the factor is the largest 32-bit fraction
whose power, rounded down at every multiplication, is at most a half.

Source: `update_registration_prices_for_networks` and `bump_registration_price_after_registration` by behaviour.
"""

from __future__ import annotations

from functools import cache

from subnet.localnet.devchain.state import State
from subnet.localnet.devchain.subnets import PALLET, read

ONE_Q32 = 1 << 32
MULT_FRACTION_BITS = 64  # BurnIncreaseMult is a U64F64
U64_MAX = (1 << 64) - 1


def power_q32(base: int, exponent: int) -> int:
    """By squaring from the lowest bit up; the order matters, because every step rounds down."""
    result = ONE_Q32
    while exponent:
        if exponent & 1:
            result = result * base >> 32
        exponent >>= 1
        base = base * base >> 32
    return result


@cache
def decay_q32(half_life_blocks: int) -> int:
    """What a price keeps per block, of ONE_Q32."""
    low, high = 0, ONE_Q32
    while low + 1 < high:
        middle = (low + high) // 2
        if power_q32(middle, half_life_blocks) > ONE_Q32 // 2:
            high = middle
        else:
            low = middle
    return low


def bounded(state: State, netuid: int, rao: int) -> int:
    return min(max(rao, int(read(state, "MinBurn", netuid))), int(read(state, "MaxBurn", netuid)))


def decay(state: State, netuid: int, block: int) -> None:
    """One block's step; the first block has none."""
    price, half_life = int(read(state, "Burn", netuid)), int(read(state, "BurnHalfLife", netuid))
    decayed = price * decay_q32(half_life) >> 32 if half_life and block > 1 else price
    if (new := bounded(state, netuid, decayed)) != price:
        state.put(PALLET, "Burn", new, netuid)


def bump(state: State, netuid: int) -> None:
    """After a registration."""
    multiplier = max(1 << MULT_FRACTION_BITS, int(read(state, "BurnIncreaseMult", netuid)["bits"]))
    raised = min(int(read(state, "Burn", netuid)) * multiplier >> MULT_FRACTION_BITS, U64_MAX)
    state.put(PALLET, "Burn", bounded(state, netuid, raised), netuid)
