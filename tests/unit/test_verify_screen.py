"""The screen: who stands out is doubted, an ordinary spread isn't, and small stages aren't judged."""

from __future__ import annotations

import math

import pytest

from subnet.hashing import EMPTY_ROOT
from subnet.records import Commitment, LossItem
from subnet.types import Hotkey, MicrobatchId, RoundId, StageId
from subnet.verify.screen import outliers


def commitment(norm: float, stage: int = 0, num_steps: int = 8) -> Commitment:
    return Commitment(
        round=RoundId(0),
        stage=StageId(stage),
        document=EMPTY_ROOT,
        journal_root=EMPTY_ROOT,
        num_entries=0,
        segments=(),
        start_params_root=EMPTY_ROOT,
        start_optim_root=EMPTY_ROOT,
        end_params_root=EMPTY_ROOT,
        end_optim_root=EMPTY_ROOT,
        shard_digests=(),
        shard_norms=(0.6 * norm, 0.8 * norm),
        num_tokens=0,
        num_steps=num_steps,
        applied=(),
        unacknowledged=(),
    )


def peers(*norms: float, stage: int = 0) -> dict[Hotkey, Commitment]:
    return {Hotkey(f"miner-{stage}{place}"): commitment(norm, stage) for place, norm in enumerate(norms)}


def test_a_scaled_pseudo_gradient_stands_out() -> None:
    found = outliers(peers(1.0, 1.05, 0.97, 1.02, 10.0))
    assert [(item.hotkey, item.statistic) for item in found] == [("miner-04", "norm")]
    assert found[0].deviations > 100


def test_an_ordinary_spread_makes_no_suspect() -> None:
    assert outliers(peers(1.0, 1.2, 0.9, 1.1, 0.8, 1.3)) == ()
    assert outliers(peers(1.0, 1.0, 1.0, 1.0, 1.01)) == ()


def test_three_replicas_are_too_few_to_tell_who_is_odd() -> None:
    assert outliers(peers(1.0, 1.0, 50.0)) == ()


def test_stages_are_judged_apart() -> None:
    assert outliers(peers(1.0, 1.1, 0.9, 1.0) | peers(30.0, 31.0, 29.0, 30.0, stage=1)) == ()


@pytest.mark.parametrize("norm", [math.nan, math.inf])
def test_what_is_not_finite_stands_out_in_any_stage(norm: float) -> None:
    found = outliers({Hotkey("broken"): commitment(1.0).model_copy(update={"shard_norms": (norm,)})})
    assert [item.hotkey for item in found] == ["broken"]


def test_a_replica_whose_paths_lose_more_stands_out() -> None:
    losses = [
        LossItem(microbatch=MicrobatchId(number), loss=3.0 if number % 5 == 4 else 1.5, path=(hotkey,))
        for number in range(40)
        for hotkey in [Hotkey(f"miner-0{number % 5}")]
    ]
    found = outliers(peers(1.0, 1.0, 1.0, 1.0, 1.0), losses)
    assert [(item.hotkey, item.statistic) for item in found] == [("miner-04", "loss")]


def test_equal_zero_statistics_are_no_outliers() -> None:
    assert outliers(peers(0.0, 0.0, 0.0, 0.0)) == ()
    assert [item.hotkey for item in outliers(peers(0.0, 0.0, 0.0, 0.0, 1.0))] == ["miner-04"]
