"""The chain stepped by hand: what each call costs and refuses, exact emission, reuse of uids, bounded memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import bittensor_core as core
import pytest
from hypothesis import given
from hypothesis import strategies as st

from subnet.localnet.devchain import runtime_api, subnets
from subnet.localnet.devchain.chain import DRAND_ROUND_1000, DevChain, DevChainConfig
from subnet.localnet.devchain.dispatch import DispatchError
from subnet.localnet.devchain.epochs import MEMORY
from subnet.localnet.devchain.extrinsics import BAD_PROOF, STALE, InvalidTransaction
from subnet.localnet.devchain.faults import Faults
from subnet.localnet.devchain.rpc_methods import Methods, RpcError
from subnet.localnet.devchain.scale import octets, vector

PALLET = "SubtensorModule"
IMMORTAL: Any = "00"


class Key:
    """An account that signs; its nonces are counted by the chain."""

    def __init__(self, uri: str) -> None:
        self.pair = core.Keypair.create_from_uri(uri)
        self.address: str = self.pair.ss58_address

    def signed(self, chain: DevChain, call: tuple[str, str, dict[str, Any]], nonce: int | None = None) -> bytes:
        return self.signed_in_era(chain, call, IMMORTAL, 0, nonce)

    def signed_in_era(
        self, chain: DevChain, call: tuple[str, str, dict[str, Any]], era: Any, birth: int, nonce: int | None = None
    ) -> bytes:
        data = bytes(chain.runtime.compose_call(*call))
        carried = {
            "era": era,
            "nonce": chain.next_nonce(self.address) if nonce is None else nonce,
            "tip": 0,
            "tip_asset_id": None,
        }
        genesis, start = (bytes.fromhex(chain.blocks[number].hash[2:]) for number in (0, birth))
        payload = chain.runtime.signature_payload(data, **carried, genesis_hash=genesis, era_block_hash=start)
        whole, _ = chain.runtime.encode_signed_extrinsic(
            data,
            public_key=self.pair.public_key,
            signature=self.pair.sign(bytes(payload)),
            signature_version=1,
            **carried,
        )
        return bytes(whole)


ALICE, BOB, DAVE = Key("//Alice"), Key("//Bob"), Key("//Dave")
OWNER, VALIDATOR, MINER, OTHER = (Key(f"//hot/{name}") for name in ("owner", "validator", "miner", "other"))
STAKE_RAO = 10**12


def new_chain(**settings: Any) -> DevChain:
    """Subnet 1 of Alice's with uids 0 owner, 1 Bob's validator with stake, 2 Dave's miner."""
    clock = itertools.count(1_700_000_000_000, 250)
    chain = DevChain(DevChainConfig(history_blocks=50), lambda: next(clock))
    chain.add_subnet(ALICE.address, OWNER.address, **{"WeightsSetRateLimit": 0, **settings})
    chain.register(1, BOB.address, VALIDATOR.address)
    chain.register(1, DAVE.address, MINER.address)
    chain.set_stake(1, VALIDATOR.address, STAKE_RAO)
    return chain


def outcome(chain: DevChain, key: Key, call: tuple[str, str, dict[str, Any]]) -> str:
    """Submits, makes one block, and says how it ended: "ok" or the error's name."""
    chain.submit(key.signed(chain, call))
    chain.produce()
    event = chain.state.get("System", "Events")[-1]["event"]
    ((name, fields),) = event["System"].items()
    if name == "ExtrinsicSuccess":
        return "ok"
    error = fields["dispatch_error"]
    if "Module" not in error:
        return str(error)
    return str(chain.runtime.module_error(error["Module"]["index"], bytes.fromhex(error["Module"]["error"][2:])[0])[0])


def weights(dests: list[int], values: list[int], version_key: int = 0) -> tuple[str, str, dict[str, Any]]:
    named = {"netuid": 1, "mecid": 0, "dests": dests, "weights": values, "version_key": version_key}
    return PALLET, "set_mechanism_weights", named


def transfer(to: Key, rao: int) -> tuple[str, str, dict[str, Any]]:
    return "Balances", "transfer_keep_alive", {"dest": to.address, "value": rao}


def register(key: Key) -> tuple[str, str, dict[str, Any]]:
    return PALLET, "burned_register", {"netuid": 1, "hotkey": key.address}


def axon(ip: int, port: int, ip_type: int = 4) -> tuple[str, str, dict[str, Any]]:
    where = {"netuid": 1, "version": 1, "ip": ip, "port": port, "ip_type": ip_type, "protocol": 4}
    return PALLET, "serve_axon", {**where, "placeholder1": 0, "placeholder2": 0}


def read(chain: DevChain, item: str, *keys: Any) -> Any:
    return chain.state.get(PALLET, item, *keys)


def free(chain: DevChain, key: Key) -> int:
    return int(chain.state.get("System", "Account", key.address)["data"]["free"])


def assert_nothing_lost(chain: DevChain) -> None:
    balances = sum(account["data"]["free"] for account in chain.state.values("System", "Account"))
    assert balances == chain.state.get("Balances", "TotalIssuance")
    held = sum(chain.state.values(PALLET, "TotalHotkeyAlpha")) + sum(read(chain, item, 1) for item in MEMORY)
    assert held <= read(chain, "SubnetAlphaOut", 1)


# Transactions


def test_transfer_moves_rao_and_burns_the_fee() -> None:
    chain = new_chain()
    before = free(chain, BOB), free(chain, DAVE)
    assert outcome(chain, BOB, transfer(DAVE, 700)) == "ok"
    assert (free(chain, BOB), free(chain, DAVE)) == (before[0] - 700 - chain.config.fee_rao, before[1] + 700)
    assert_nothing_lost(chain)


def test_a_failed_call_costs_its_fee_and_nothing_else() -> None:
    chain = new_chain()
    before = free(chain, BOB)
    assert outcome(chain, BOB, transfer(DAVE, 10**17)) == "{'Token': 'FundsUnavailable'}"
    assert free(chain, BOB) == before - chain.config.fee_rao
    assert chain.nonce(BOB.address) == 1
    assert_nothing_lost(chain)


def test_a_stranger_without_money_is_refused_and_a_hotkeys_coldkey_pays() -> None:
    chain = new_chain()
    with pytest.raises(InvalidTransaction, match="pay some fees"):
        chain.submit(OTHER.signed(chain, axon(1, 1)))
    before = free(chain, DAVE)
    assert outcome(chain, MINER, axon(0x7F000001, 80)) == "ok"
    assert free(chain, DAVE) == before - chain.config.fee_rao


def test_nonces_wait_for_their_turn_and_are_used_once() -> None:
    chain = new_chain()
    first, second = (BOB.signed(chain, transfer(DAVE, 1000), nonce) for nonce in (0, 1))
    chain.submit(second)
    assert len(chain.produce().extrinsics) == 1
    chain.submit(first)
    with pytest.raises(InvalidTransaction) as imported:
        chain.submit(first)
    assert imported.value.code == 1013
    assert chain.next_nonce(BOB.address) == 2
    assert chain.produce().extrinsics[1:] == (first, second)
    with pytest.raises(InvalidTransaction, match=STALE):
        chain.submit(first)


def test_signatures_cover_the_call_and_the_chain() -> None:
    chain = new_chain()
    good = BOB.signed(chain, transfer(DAVE, 1000))
    forged = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(InvalidTransaction, match=BAD_PROOF):
        chain.submit(forged)
    elsewhere = DevChain(DevChainConfig(block_time_s=1.0))
    with pytest.raises(InvalidTransaction, match=BAD_PROOF):
        elsewhere.submit(good)


@given(st.binary(max_size=200), st.integers(0, 200), st.integers(0, 255))
def test_garbage_is_refused_and_never_stops_the_chain(tail: bytes, at: int, byte: int) -> None:
    good = BOB.signed(GARBAGE_CHAIN, transfer(DAVE, 1000), 0)
    spoilt = bytearray(good)
    spoilt[at % len(good)] ^= byte or 1
    for raw in (tail, octets(tail), octets(good[2:10] + tail), bytes(spoilt), good[: at % len(good)]):
        with pytest.raises(InvalidTransaction):
            GARBAGE_CHAIN.submit(raw)
    assert len(GARBAGE_CHAIN.produce().extrinsics) == 1


GARBAGE_CHAIN = new_chain()


def test_a_mortal_transaction_expires() -> None:
    chain = new_chain()
    for _ in range(9):
        chain.produce()
    told: list[Any] = []
    waiting = BOB.signed_in_era(chain, transfer(DAVE, 1000), {"period": 8, "phase": 1}, 9, nonce=1)
    chain.submit(waiting, told.append)  # waits for nonce 0, which never comes
    for _ in range(8):
        chain.produce()
    assert told == ["invalid"]
    assert chain.pool.waiting == {}
    with pytest.raises(InvalidTransaction, match=BAD_PROOF):
        chain.submit(waiting)


def test_a_watcher_hears_of_inclusion() -> None:
    chain = new_chain()
    told: list[Any] = []
    chain.submit(BOB.signed(chain, transfer(DAVE, 1000)), told.append)
    block = chain.produce()
    assert told == [{"inBlock": block.hash}, {"finalized": block.hash}]


# Neurons


def test_registration_costs_the_burn_and_refuses_in_order() -> None:
    chain = new_chain()
    before = free(chain, BOB)
    assert outcome(chain, BOB, register(OTHER)) == "ok"
    assert before - free(chain, BOB) == read(chain, "Burn", 1) + chain.config.fee_rao
    assert read(chain, "Uids", 1, OTHER.address) == 3
    assert outcome(chain, BOB, register(OTHER)) == "HotKeyAlreadyRegisteredInSubNet"
    assert outcome(chain, BOB, (PALLET, "burned_register", {"netuid": 9, "hotkey": OTHER.address})) == "SubnetNotExists"
    root = (PALLET, "burned_register", {"netuid": 0, "hotkey": OTHER.address})
    assert outcome(chain, BOB, root) == "RegistrationNotPermittedOnRootSubnet"
    assert_nothing_lost(chain)


def test_a_hotkey_stays_with_its_coldkey() -> None:
    chain = new_chain()
    chain.add_subnet(ALICE.address, OWNER.address)
    stolen = (PALLET, "burned_register", {"netuid": 2, "hotkey": MINER.address})
    assert outcome(chain, BOB, stolen) == "NonAssociatedColdKey"


def test_a_full_subnet_reuses_the_uid_of_the_least_paid() -> None:
    chain = new_chain(MaxAllowedUids=4, ImmunityPeriod=5)
    chain.register(1, DAVE.address, Key("//hot/idle").address)
    assert outcome(chain, BOB, register(OTHER)) == "NoNeuronIdAvailable"
    chain.submit(VALIDATOR.signed(chain, weights([2], [1])))
    chain.submit(MINER.signed(chain, axon(0x7F000001, 80)))
    for _ in range(chain.config.tempo_blocks + 1):
        chain.produce()
    assert outcome(chain, BOB, register(OTHER)) == "ok"
    assert read(chain, "Uids", 1, OTHER.address) == 3
    assert read(chain, "Uids", 1, Key("//hot/idle").address) is None
    assert read(chain, "SubnetworkN", 1) == 4
    assert read(chain, "Keys", 1, 3) == OTHER.address
    assert read(chain, "LastUpdate", 1)[3] == chain.head.number


def test_serving_checks_the_address() -> None:
    chain = new_chain()
    assert outcome(chain, MINER, axon(0x7F000001, 80, 5)) == "InvalidIpType"
    assert outcome(chain, MINER, axon(0, 80)) == "InvalidIpAddress"
    assert outcome(chain, MINER, axon(1 << 40, 80)) == "InvalidIpAddress"
    assert outcome(chain, MINER, axon(0x7F000001, 0)) == "InvalidPort"
    assert outcome(chain, MINER, axon(0x7F000001, 80)) == "ok"
    assert read(chain, "Axons", 1, MINER.address)["port"] == 80
    strict = DevChain(DevChainConfig(allow_loopback=False))
    strict.add_subnet(ALICE.address, OWNER.address)
    assert outcome(strict, OWNER, axon(0x7F000001, 80)) == "InvalidIpAddress"
    assert outcome(strict, OWNER, axon(0x08080808, 80)) == "ok"


# Weights


@pytest.mark.parametrize(
    ("key", "call", "expected"),
    [
        (VALIDATOR, weights([1, 2], [1]), "WeightVecNotEqualSize"),
        (VALIDATOR, weights([0, 1, 2, 2], [1, 1, 1, 1]), "UidsLengthExceedUidsInSubNet"),
        (BOB, weights([2], [1]), "HotKeyNotRegisteredInSubNet"),
        (VALIDATOR, weights([2], [1], version_key=6), "IncorrectWeightVersionKey"),
        (MINER, weights([1], [1], 7), "NeuronNoValidatorPermit"),
        (VALIDATOR, weights([2, 2], [1, 1], 7), "DuplicateUids"),
        (VALIDATOR, weights([2, 5], [1, 1], 7), "UidVecContainInvalidOne"),
        (VALIDATOR, weights([2], [1], 7), "WeightVecLengthIsLow"),
        (VALIDATOR, weights([0, 2], [1, 9], 7), "MaxWeightExceeded"),
        (VALIDATOR, weights([0, 2], [4, 5], 7), "ok"),
        (MINER, weights([2], [1], 7), "ok"),
        (OWNER, weights([0, 2], [4, 5], 7), "ok"),
    ],
)
def test_weights_are_checked_as_on_the_real_chain(
    key: Key, call: tuple[str, str, dict[str, Any]], expected: str
) -> None:
    chain = new_chain(WeightsVersionKey=7, MinAllowedWeights=2, MaxWeightsLimit=40000)
    assert outcome(chain, key, call) == expected


def test_weights_are_scaled_up_and_limited_in_rate() -> None:
    chain = new_chain(WeightsSetRateLimit=5)
    assert outcome(chain, VALIDATOR, weights([0, 2], [50, 100])) == "ok"
    assert read(chain, "Weights", 1, 1) == [(0, 32767), (2, 65535)]
    assert outcome(chain, VALIDATOR, weights([2], [1])) == "SettingWeightsTooFast"
    for _ in range(4):
        chain.produce()
    assert outcome(chain, VALIDATOR, weights([2], [1])) == "ok"


def sealed(dests: list[int], values: list[int]) -> bytes:
    u16s: Callable[[list[int]], bytes] = lambda numbers: vector(number.to_bytes(2, "little") for number in numbers)  # noqa: E731
    payload = octets(bytes(VALIDATOR.pair.public_key)) + u16s(dests) + u16s(values) + (0).to_bytes(8, "little")
    return bytes(core.encrypt_at_round(payload, 1000))


def test_committed_weights_are_revealed_by_the_recorded_round() -> None:
    chain = new_chain(CommitRevealWeightsEnabled=True)
    assert chain.rules.drand_signatures[1000] == DRAND_ROUND_1000
    assert outcome(chain, VALIDATOR, weights([2], [1])) == "CommitRevealEnabled"
    named = {"netuid": 1, "mecid": 0, "commit": list(sealed([0, 2], [1, 3])), "reveal_round": 1000}
    commit = (PALLET, "commit_timelocked_mechanism_weights", {**named, "commit_reveal_version": 4})
    assert outcome(chain, VALIDATOR, commit) == "ok"
    chain.submit(VALIDATOR.signed(chain, (PALLET, commit[1], {**commit[2], "commit": [1, 2, 3]})))
    for _ in range(chain.config.tempo_blocks):
        chain.produce()
    assert read(chain, "Weights", 1, 1) == []
    for _ in range(chain.config.tempo_blocks):
        chain.produce()
    assert read(chain, "Weights", 1, 1) == [(0, 21845), (2, 65535)]
    assert read(chain, "TimelockedWeightCommits", 1, 0) == []


# Emission


def epoch(chain: DevChain) -> None:
    before = read(chain, "SubnetEpochIndex", 1)
    while read(chain, "SubnetEpochIndex", 1) == before:
        chain.produce()


def test_an_epoch_pays_41_41_18_and_burns_the_owners_incentive() -> None:
    chain = new_chain()
    chain.submit(VALIDATOR.signed(chain, weights([0, 2], [1, 3])))
    epoch(chain)
    payment = chain.payments[1]
    created = chain.config.tempo_blocks * chain.config.emission_rao
    miners = created * 41 // 100
    assert payment.created == created
    assert payment.owner == created * 18 // 100
    assert payment.per_uid[1] == miners
    assert payment.per_uid[2] == pytest.approx(miners * 3 / 4, rel=1e-4)
    assert payment.burnt == miners - payment.per_uid[2]
    assert payment.per_uid[0] == 0
    assert subnets.stake_rao(chain.state, 1, VALIDATOR.address) == STAKE_RAO + miners
    assert_nothing_lost(chain)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 65535)), max_size=3), st.integers(0, 10**10 + 7))
def test_no_rao_is_lost_or_created(votes: list[tuple[int, int]], emission_rao: int) -> None:
    clock = itertools.count(1_700_000_000_000, 250)
    chain = DevChain(DevChainConfig(emission_rao=emission_rao, tempo_blocks=3), lambda: next(clock))
    chain.add_subnet(ALICE.address, OWNER.address)
    chain.register(1, BOB.address, VALIDATOR.address)
    chain.register(1, DAVE.address, MINER.address)
    chain.set_stake(1, VALIDATOR.address, STAKE_RAO)
    dests = dict(votes)
    chain.submit(VALIDATOR.signed(chain, weights(list(dests), list(dests.values()))))
    burnt = 0
    for _ in range(2):
        epoch(chain)
        payment = chain.payments[1]
        assert payment.created == sum(payment.per_uid) + payment.owner + payment.burnt
        assert payment.burnt >= 0
        burnt += payment.burnt
        held = sum(chain.state.values(PALLET, "TotalHotkeyAlpha")) + sum(read(chain, item, 1) for item in MEMORY)
        assert held + burnt == read(chain, "SubnetAlphaOut", 1) == STAKE_RAO + chain.head.number * emission_rao


def test_permits_go_to_the_largest_stakes() -> None:
    chain = new_chain(MaxAllowedValidators=2)
    chain.set_stake(1, MINER.address, STAKE_RAO + 1)
    chain.set_stake(1, OWNER.address, STAKE_RAO - 1)
    assert read(chain, "ValidatorPermit", 1) == [False, True, True]


# Administration


def admin(name: str, **value: Any) -> tuple[str, str, dict[str, Any]]:
    return "AdminUtils", name, {"netuid": 1, **value}


def test_sudo_sets_hyperparameters_and_reports_the_inner_result() -> None:
    chain = new_chain()

    def through_sudo(call: tuple[str, str, dict[str, Any]]) -> tuple[str, str, dict[str, Any]]:
        return "Sudo", "sudo", {"call": bytes(chain.runtime.compose_call(*call))}

    tempo = through_sudo(admin("sudo_set_tempo", tempo=99))
    assert outcome(chain, BOB, tempo) == "RequireSudo"
    assert outcome(chain, ALICE, tempo) == "ok"
    assert read(chain, "Tempo", 1) == 99
    elsewhere = through_sudo(("AdminUtils", "sudo_set_tempo", {"netuid": 9, "tempo": 5}))
    assert outcome(chain, ALICE, elsewhere) == "ok"
    (event,) = [record["event"]["Sudo"] for record in chain.state.get("System", "Events") if "Sudo" in record["event"]]
    assert "Err" in event["Sudid"]["sudo_result"]
    assert outcome(chain, ALICE, through_sudo(transfer(BOB, 1))) == "ok"
    assert_nothing_lost(chain)


def test_the_owner_sets_what_owners_may() -> None:
    chain = new_chain()
    assert outcome(chain, ALICE, admin("sudo_set_immunity_period", immunity_period=7)) == "ok"
    assert read(chain, "ImmunityPeriod", 1) == 7
    assert outcome(chain, BOB, admin("sudo_set_immunity_period", immunity_period=8)) == "BadOrigin"
    assert outcome(chain, ALICE, admin("sudo_set_tempo", tempo=8)) == "BadOrigin"


def test_calls_that_are_declared_but_not_served_are_filtered() -> None:
    chain = new_chain()
    assert outcome(chain, BOB, ("MevShield", "submit_encrypted", {"ciphertext": [1, 2]})) == "CallFiltered"


def test_commitments_need_a_neuron_and_are_replaced() -> None:
    chain = new_chain()

    def commit(data: bytes) -> tuple[str, str, dict[str, Any]]:
        info = {"fields": [[{f"Raw{len(data)}": list(data)}]]}
        return "Commitments", "set_commitment", {"netuid": 1, "info": info}

    assert outcome(chain, BOB, commit(b"hello")) == "AccountNotAllowedCommit"
    for data in (b"hello", b"bye"):
        assert outcome(chain, MINER, commit(data)) == "ok"
        stored = chain.state.get("Commitments", "CommitmentOf", 1, MINER.address)
        assert stored["block"] == chain.head.number
        assert data.hex() in str(stored["info"]) or str(list(data)).strip("[]") in str(stored["info"])


def test_unknown_settings_are_named() -> None:
    with pytest.raises(ValueError, match="Tepmo"):
        DevChain().add_subnet(ALICE.address, OWNER.address, Tepmo=3)
    with pytest.raises(DispatchError, match="AlreadyRegistered"):
        new_chain().register(1, BOB.address, VALIDATOR.address)


# Blocks and requests


def test_history_is_bounded_and_earlier_blocks_stay_readable() -> None:
    chain = new_chain(Tempo=7)
    hashes = [chain.produce().hash for _ in range(200)]
    history = chain.config.history_blocks
    assert len(chain.blocks) <= history + 1
    assert len(chain.numbers) == len(chain.blocks)
    assert len(chain.state.overwritten) == history
    assert chain.view_at(hashes[0]) is None
    view = chain.view_at(hashes[-20])
    assert view is not None
    assert view.get("System", "Number") == 181
    assert chain.hash_at(0) is not None


def test_block_hashes_are_reproducible() -> None:
    assert [new_chain().produce().hash for _ in range(2)] == [new_chain().produce().hash] * 2


class NoSession:
    """A connection that subscribes to nothing."""

    def subscribe(self, topic: str) -> str:
        return topic

    def unsubscribe(self, subscription: str) -> bool:
        return True

    def notifier(self, subscription: str, method: str) -> Callable[[Any], None]:
        return lambda result: None


def test_requests_fail_with_substrates_codes() -> None:
    chain = new_chain()
    methods = Methods(chain, Faults(pool_rejection="Custom error: 6"))
    raw = "0x" + BOB.signed(chain, transfer(DAVE, 1)).hex()
    for method, params, code in (
        ("no_such", [], -32601),
        ("state_getStorage", ["xyz"], -32602),
        ("state_getStorage", [], -32602),
        ("state_getStorage", ["0x00", "0x" + "11" * 32], 4003),
        ("author_submitExtrinsic", [raw], 1010),
        ("author_submitAndWatchExtrinsic", [raw], 1010),
        ("devchain_fault", ["typo", True], -32602),
    ):
        with pytest.raises(RpcError) as refused:
            methods.call(method, params, NoSession())
        assert refused.value.code == code, method
    assert methods.call("devchain_fault", ["pool_rejection", None], NoSession()) == "Custom error: 6"
    assert methods.call("author_submitExtrinsic", [raw], NoSession()).startswith("0x")
    assert methods.call("devchain_produce", [2], NoSession()) == chain.head.hash
    assert free(chain, DAVE) > 10**15


def test_a_full_subnet_is_read_and_judged_quickly() -> None:
    """Generous bounds for a shared machine; the chain has a quarter of a second per block."""
    chain = new_chain(MaxAllowedUids=256, Tempo=1000)
    for number in range(253):
        hotkey = Key(f"//hot/{number}").address
        chain.register(1, BOB.address, hotkey)
        if number < 63:
            chain.set_stake(1, hotkey, STAKE_RAO + number)
    chain.produce()
    for uid in range(1, 64):
        chain.state.put(PALLET, "Weights", [(dest, 1 + dest * uid % 97) for dest in range(64, 256)], 1, uid)
    chain.state.put(PALLET, "LastUpdate", [1] * 256, 1)
    started = time.perf_counter()
    assert runtime_api.answer(chain.state, "SubnetInfoRuntimeApi", "get_metagraph", b"\1\0")
    read_s = time.perf_counter() - started
    chain.state.put(PALLET, "Tempo", 1, 1)
    started = time.perf_counter()
    chain.produce()
    epoch_s = time.perf_counter() - started
    assert sum(read(chain, "Incentive", 1)) == pytest.approx(65535, abs=200)
    assert read_s < 0.5, read_s
    assert epoch_s < 1.0, epoch_s
    print(f"metagraph {read_s * 1000:.0f} ms, epoch {epoch_s * 1000:.0f} ms")
