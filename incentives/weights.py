"""Weights: scores as the shares that a validator sets on chain.

Not here: uids (the caller looks them up in the snapshot of the block it sets weights at), u16 encoding, commit-reveal.
Invariants: weights are finite, not negative, and sum to 1 within rounding; a score that isn't a positive finite number
counts as nothing; whatever nobody may have burns to the owner, so the result is never empty.
Source: design.md section 7.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from fractions import Fraction

from subnet.types import Hotkey


def weights(
    by_hotkey: Mapping[Hotkey, float], burned: float, owner: Hotkey, registered: Collection[Hotkey]
) -> dict[Hotkey, float]:
    """Weight of each hotkey with one, by hotkey.

    burned: scores that were voided; they and the scores of hotkeys outside ``registered`` go to ``owner``. So does
    everything when nobody qualifies. Sums and shares are exact fractions, rounded once at the end: neither the order of
    the mapping nor any size of score can move a bit.
    """
    exact = {hotkey: Fraction(value) for hotkey, value in by_hotkey.items() if _counts(value)}
    known = {hotkey: value for hotkey, value in exact.items() if hotkey in registered}
    burn = Fraction(burned) if _counts(burned) else Fraction(0)
    burn += sum(value for hotkey, value in exact.items() if hotkey not in registered)
    if not known:
        return {owner: 1.0}
    total = sum(known.values()) + burn
    known[owner] = known.get(owner, Fraction(0)) + burn
    shares = {hotkey: float(known[hotkey] / total) for hotkey in sorted(known)}
    return {hotkey: share for hotkey, share in shares.items() if share > 0.0}


def _counts(value: float) -> bool:
    return math.isfinite(value) and value > 0.0
