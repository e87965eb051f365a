"""Weights: scores as the shares that a validator sets on chain.

Not here: uids (the caller looks them up in the snapshot of the block it sets weights at), u16 encoding, commit-reveal.
Invariants: weights are finite, not negative, and sum to 1 within rounding; a score that isn't a positive finite number
counts as nothing; whatever nobody may have burns to the owner, so the result is never empty.
Source: design.md section 7.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from subnet.types import Hotkey


def weights(
    by_hotkey: Mapping[Hotkey, float], burned: float, owner: Hotkey, registered: Collection[Hotkey]
) -> dict[Hotkey, float]:
    """Weight of each hotkey with one, by hotkey.

    burned: scores that were voided; they and the scores of hotkeys outside ``registered`` go to ``owner``. So does
    everything when nobody qualifies. Sums are ``fsum``, exactly rounded: the order of the mapping can't move a bit.
    """
    valid = {hotkey: value for hotkey, value in by_hotkey.items() if _counts(value)}
    known = {hotkey: value for hotkey, value in valid.items() if hotkey in registered}
    rest = [value for hotkey, value in valid.items() if hotkey not in registered]
    burn = math.fsum([*rest, burned if _counts(burned) else 0.0])
    total = math.fsum([*known.values(), burn])
    if not known or not math.isfinite(total):
        return {owner: 1.0}
    shares = {hotkey: value / total for hotkey, value in known.items()}
    if burn > 0.0:
        shares[owner] = math.fsum([shares.get(owner, 0.0), burn / total])
    return {hotkey: shares[hotkey] for hotkey in sorted(shares) if shares[hotkey] > 0.0}


def _counts(value: float) -> bool:
    return math.isfinite(value) and value > 0.0
