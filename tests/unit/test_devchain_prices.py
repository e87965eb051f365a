"""The price of a neuron over blocks and registrations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import prices
from subnet.localnet.devchain.prices import ONE_Q32, decay_q32
from tests.unit.devchain_actors import BOB, OTHER, PALLET, Key, free, new_chain, outcome, read, register

TAO = 10**9


def test_the_factor_is_the_published_half_life() -> None:
    """2 ** (-1/360) is .998076 and 2 ** (-1/1) a half; both to the last of 32 bits, rounding included."""
    assert decay_q32(360) / ONE_Q32 == pytest.approx(2 ** (-1 / 360), abs=2e-9)
    assert decay_q32(1) == ONE_Q32 // 2
    assert prices.power_q32(decay_q32(360), 360) <= ONE_Q32 // 2 < prices.power_q32(decay_q32(360) + 1, 360)


def test_the_price_halves_in_its_half_life_and_stops_at_the_bottom() -> None:
    chain = new_chain(Burn=8 * TAO, BurnHalfLife=10, MinBurn=3 * TAO)
    chain.produce()
    assert read(chain, "Burn", 1) == 8 * TAO
    for _ in range(10):
        chain.produce()
    assert read(chain, "Burn", 1) == pytest.approx(4 * TAO, rel=1e-7)
    for _ in range(10):
        chain.produce()
    assert read(chain, "Burn", 1) == 3 * TAO


def test_a_registration_makes_the_next_one_dearer_in_the_same_block() -> None:
    chain = new_chain(Burn=TAO, BurnHalfLife=0)
    before = free(chain, BOB)
    for number, name in enumerate(("a", "b")):
        chain.submit(BOB.signed(chain, register(Key(f"//hot/{name}")), nonce=number))
    chain.produce()
    first, second = TAO, 1_260_000_000
    assert before - free(chain, BOB) == first + second + 2 * chain.config.fee_rao
    assert read(chain, "Burn", 1) == pytest.approx(1.26**2 * TAO, rel=1e-8)


def test_the_price_stops_at_the_top() -> None:
    chain = new_chain(Burn=TAO, MaxBurn=TAO + 5, BurnHalfLife=0)
    assert outcome(chain, BOB, register(OTHER)) == "ok"
    assert read(chain, "Burn", 1) == TAO + 5


def test_six_miners_can_afford_to_start() -> None:
    chain = new_chain()
    before = free(chain, BOB)
    for number in range(6):
        assert outcome(chain, BOB, register(Key(f"//hot/{number}"))) == "ok"
    assert before - free(chain, BOB) < 2 * TAO


def test_a_refused_registration_costs_only_the_fee_and_leaves_the_price() -> None:
    chain = new_chain(BurnHalfLife=0)
    price, poor = read(chain, "Burn", 1), Key("//poor")
    chain.endow(poor.address, price + chain.config.fee_rao + 499)
    assert outcome(chain, poor, register(OTHER)) == "NotEnoughBalanceToStake"  # 499 rao are below the deposit
    assert free(chain, poor) == price + 499
    assert read(chain, "Burn", 1) == price


def limited(price: int, netuid: int = 1) -> tuple[str, str, dict[str, Any]]:
    return PALLET, "register_limit", {"netuid": netuid, "hotkey": OTHER.address, "limit_price": price}


def test_a_limit_guards_against_a_dearer_neuron() -> None:
    chain = new_chain(Burn=TAO, BurnHalfLife=0)
    assert outcome(chain, BOB, limited(TAO, netuid=9)) == "SubnetNotExists"
    assert outcome(chain, BOB, limited(TAO - 1)) == "RegistrationPriceLimitExceeded"
    assert outcome(chain, BOB, limited(TAO)) == "ok"


@given(st.integers(1, 65535))
def test_any_half_life_halves_and_never_rises(half_life: int) -> None:
    factor = decay_q32(half_life)
    assert 0 < factor < ONE_Q32
    assert prices.power_q32(factor, half_life) <= ONE_Q32 // 2
    assert prices.power_q32(factor, half_life) / ONE_Q32 == pytest.approx(0.5, rel=1e-3)
