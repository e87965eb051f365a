"""The chain on disk: nothing is lost by a crash or a restart, the file stays bounded, foreign files stay untouched."""

from __future__ import annotations

import itertools
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from subnet.errors import ConfigError
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
from subnet.localnet.devchain.genesis import Genesis, GenesisSubnet, apply_genesis
from subnet.localnet.devchain.store import Store
from tests.unit.devchain_actors import (
    ALICE,
    BOB,
    DAVE,
    MINER,
    OWNER,
    PALLET,
    STAKE_RAO,
    VALIDATOR,
    axon,
    outcome,
    read,
    transfer,
    weights,
)

HISTORY = 12


def chain_on(path: Path | None, history: int = HISTORY) -> DevChain:
    clock = itertools.count(1_700_000_000_000, 250)
    return DevChain(DevChainConfig(history_blocks=history), lambda: next(clock), path)


def people(chain: DevChain) -> None:
    chain.add_subnet(ALICE.address, OWNER.address, WeightsSetRateLimit=0, Tempo=5)
    chain.register(1, BOB.address, VALIDATOR.address)
    chain.register(1, DAVE.address, MINER.address)
    chain.set_stake(1, VALIDATOR.address, STAKE_RAO)


def storage(chain: DevChain) -> dict[int, dict[bytes, bytes | None]]:
    """Whole, at every block that is kept."""
    past = {}
    for number in range(chain.head.number - HISTORY + 1, chain.head.number + 1):
        view = chain.state.at(number)
        if view is not None:
            past[number] = {key: view.raw(key) for key in view.raw_keys(b"")}
    return past


def everything(chain: DevChain) -> object:
    """All that a client can learn."""
    return chain.blocks, chain.numbers, storage(chain), chain.payments, chain.nonce(BOB.address), chain.final


def crashed(path: Path, number: int = 0) -> Path:
    """The file as a program that is killed now leaves it."""
    copy = path.with_name(f"copy{number}.db")
    for suffix in ("", "-wal"):
        if path.with_name(path.name + suffix).exists():
            shutil.copy(path.with_name(path.name + suffix), copy.with_name(copy.name + suffix))
    return copy


STEPS: list[Callable[[DevChain], object]] = [
    people,
    DevChain.produce,
    lambda chain: outcome(chain, BOB, transfer(DAVE, 1000)),
    lambda chain: outcome(chain, MINER, axon(0x7F000001, 80)),
    lambda chain: outcome(chain, VALIDATOR, weights([2], [1])),
    lambda chain: chain.endow(BOB.address, 77),
    *[DevChain.produce] * 7,
    lambda chain: chain.set_stake(1, MINER.address, 5),
    lambda chain: outcome(chain, BOB, transfer(DAVE, 10**17)),
    *[DevChain.produce] * 8,
]


def test_a_chain_that_crashes_after_every_step_is_the_one_that_never_did(tmp_path: Path) -> None:
    steady, shaken = chain_on(None), chain_on(tmp_path / "chain.db")
    for number, step in enumerate(STEPS):
        step(steady)
        step(shaken)
        left = shaken
        shaken = chain_on(crashed(left.store.path, number))  # type: ignore[union-attr]
        shaken.now_ms = left.now_ms
        assert shaken.is_restored
        assert everything(shaken) == everything(left), number
        assert storage(shaken) == storage(steady), number  # hashes differ: signatures are randomised
        left.close()
    assert shaken.head.number > HISTORY + 5
    assert shaken.payments[1].created > 0


def test_direct_writes_are_saved_with_the_block_that_they_amend(tmp_path: Path) -> None:
    chain = chain_on(tmp_path / "chain.db")
    people(chain)
    chain.produce()
    chain.state.put(PALLET, "Tempo", 44, 1)
    chain.produce()
    again = chain_on(crashed(tmp_path / "chain.db"))
    assert read(again, "Tempo", 1) == 44
    past = again.state.at(0)
    assert past is not None
    assert past.get(PALLET, "Tempo", 1) == 5
    assert everything(again) == everything(chain)


def test_a_replaced_block_leaves_nothing_in_the_file(tmp_path: Path) -> None:
    chain = chain_on(tmp_path / "chain.db")
    people(chain)
    chain.faults.unfinalised = True
    outcome(chain, BOB, transfer(DAVE, 1000))
    chain.faults.no_inclusion = True
    old = chain.head
    chain.reorg()
    again = chain_on(crashed(tmp_path / "chain.db"))
    assert again.block_at(old.hash) is None
    assert again.nonce(BOB.address) == 0
    assert again.final == again.head  # switches do not outlive the program
    assert [again.state.at(n).raw_keys(b"") for n in (0, 1)] == [chain.state.at(n).raw_keys(b"") for n in (0, 1)]  # type: ignore[union-attr]


PROGRAM = """
import sys
from pathlib import Path
from subnet.localnet.devchain.chain import DevChain, DevChainConfig
chain = DevChain(DevChainConfig(history_blocks=40), state_file=Path(sys.argv[1]))
if not chain.is_restored:
    chain.add_subnet(sys.argv[2], sys.argv[3], Tempo=3)
while True:
    block = chain.produce()
    sys.stdout.write(f"{block.number} {block.hash}\\n")
    sys.stdout.flush()
"""


def test_a_killed_program_loses_no_block_that_anybody_heard_of(tmp_path: Path) -> None:
    path, last = tmp_path / "chain.db", 0
    for num_lines in (1, 57, 130, 20):
        command = [sys.executable, "-c", PROGRAM, str(path), ALICE.address, OWNER.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
            assert program.stdout is not None
            lines = [program.stdout.readline().split() for _ in range(num_lines)]
            program.send_signal(signal.SIGKILL)
            lines += [line.split() for line in program.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
        assert int(lines[0][0]) == last + 1
        chain = DevChain(DevChainConfig(history_blocks=40), state_file=path)
        number, block_hash = int(lines[-1][0]), lines[-1][1]
        assert chain.hash_at(number) == block_hash
        last = chain.head.number
        assert last in (number, number + 1)  # the last may be saved and not yet told
        assert chain.state.get("System", "Number") == last
        chain.close()


def test_genesis_is_in_the_file_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    subnet = GenesisSubnet(owner_coldkey=ALICE.address, owner_hotkey=OWNER.address)
    chain = chain_on(path)
    broken = Genesis(accounts={BOB.address: 5}, subnets=[subnet, subnet.model_copy(update={"settings": {"Typo": 1}})])
    with pytest.raises(ConfigError, match="subnet 2"):
        apply_genesis(chain, broken)
    chain.close()
    chain = chain_on(path)
    assert not chain.is_restored
    assert apply_genesis(chain, Genesis(subnets=[subnet])) == [1]
    assert chain_on(crashed(path)).is_restored


def test_the_file_stops_growing(tmp_path: Path) -> None:
    chain = chain_on(tmp_path / "chain.db")
    people(chain)
    sizes = []
    for _ in range(4):
        for _ in range(50):
            outcome(chain, BOB, transfer(DAVE, 1000))
        chain.store.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # type: ignore[union-attr]
        sizes.append((tmp_path / "chain.db").stat().st_size)
    counts = [
        chain.store.db.execute(f"SELECT count(DISTINCT number) FROM {table}").fetchone()[0]  # type: ignore[union-attr]
        for table in ("blocks", "overwritten")
    ]
    assert counts == [HISTORY + 1, HISTORY]
    assert sizes[-1] <= sizes[1] * 1.1, sizes


def test_a_full_disk_stops_the_chain_and_costs_nothing_that_was_saved(tmp_path: Path) -> None:
    path, told = tmp_path / "chain.db", []
    chain = chain_on(path)
    people(chain)
    chain.listeners.append(lambda block: told.append(block.number))
    chain.produce()
    database = chain.store.db  # type: ignore[union-attr]
    database.execute(f"PRAGMA max_page_count = {database.execute('PRAGMA page_count').fetchone()[0] + 2}")
    remark = ("System", "remark", {"remark": [7] * 20_000})
    chain.submit(BOB.signed(chain, remark))
    for _ in range(2):
        with pytest.raises(ConfigError, match="full"):
            chain.produce()
    assert told == [1]  # nobody hears of a block that is not in the file
    assert chain_on(crashed(path)).head.number == 1
    database.execute("PRAGMA max_page_count = 100000")
    chain.produce()
    assert storage(chain_on(crashed(path, 1))) == storage(chain)


def test_another_history_is_taken_up(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    chain = chain_on(path)
    hashes = [chain.produce().hash for _ in range(30)]
    chain.close()
    for history, num_readable in ((4, 4), (20, 4)):
        chain = chain_on(path, history=history)
        assert [chain.view_at(name) is not None for name in hashes].count(True) == num_readable
        chain.produce()
        chain.close()
        hashes.append(chain.head.hash)
        num_readable = 5


# Refusals


def refused(path: Path, match: str, config: DevChainConfig | None = None) -> None:
    """ConfigError with something to do, and every byte of the file as before."""
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=match) as told:
        DevChain(config, state_file=path)
    assert "--state" in str(told.value)
    assert path.read_bytes() == before


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A good file that nobody has open."""
    chain = chain_on(tmp_path / "chain.db")
    people(chain)
    for _ in range(20):
        chain.produce()
    chain.close()
    return tmp_path / "chain.db"


def test_other_metadata_is_refused(closed: Path) -> None:
    refused(closed, "other metadata", DevChainConfig(block_time_s=1.0))
    assert DevChain(state_file=closed).head.number == 20


def test_another_format_is_refused(closed: Path) -> None:
    with sqlite3.connect(closed) as db:
        db.execute("PRAGMA user_version = 2")
    db.close()
    refused(closed, "format 2")


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE mine (thing TEXT)")
    db.close()
    refused(path, "another program's database")


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "genesis.json"
    path.write_text('{"accounts": {}}' * 100)
    refused(path, "damaged, or not one")


@pytest.mark.parametrize("keep", [0.3, 0.6, 0.9])
def test_a_cut_off_file_is_refused(closed: Path, keep: float) -> None:
    closed.write_bytes(closed.read_bytes()[: int(closed.stat().st_size * keep)])
    refused(closed, "damaged, or not one")


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM blocks WHERE number = 0",
        "UPDATE blocks SET parent = '0x00' WHERE number = 15",
        "UPDATE blocks SET extrinsics = x'ff' WHERE number = 15",
        "INSERT INTO payments VALUES (3, '{}')",
        "INSERT INTO payments VALUES (3, 'x')",
        "DROP TABLE payments",
    ],
)
def test_inconsistent_content_is_refused(closed: Path, damage: str) -> None:
    with sqlite3.connect(closed) as db:
        db.execute(damage)
    db.close()
    refused(closed, "cannot be used|damaged, or not one")


def test_a_file_in_use_is_refused(closed: Path) -> None:
    chain = chain_on(closed)
    with pytest.raises(ConfigError, match="in use"):
        chain_on(closed)
    chain.produce()
    chain.close()


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Store(tmp_path / "no" / "chain.db")


def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "chain.db"
    path.touch()
    chain = chain_on(path)
    assert not chain.is_restored
    chain.produce()
    chain.close()
    assert chain_on(path).head.number == 1
