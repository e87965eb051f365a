"""A stepped development chain with a few people on it who sign and submit calls, for the tests of the chain."""

from __future__ import annotations

import itertools
from typing import Any

import bittensor_core as core

from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.epochs import MEMORY

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
    last = chain.state.get("System", "Events")[-1]
    if last["event_id"] == "ExtrinsicSuccess":
        assert last["extrinsic_idx"] > 0, "the transaction is not in the block"
        return "ok"
    error = last["attributes"]["dispatch_error"]
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
