"""The witness of emissions: what epochs paid, by substrate-interface alone, against the chain and `liquid watch`.

Ground truth is stake: TotalHotkeyAlpha of each hotkey after the epoch's block minus before it. Created is what was
pending before the block plus what the block added to SubnetAlphaOut; what reached nobody's stake is burned. The split
into a miner's and a validator's part is by the event. Where a transaction of the same block moved a hotkey's stake (an
event of its own says so), its difference is not pay: the chain's own account, Emission, is taken there and it is said.
Not here: any code of Liquid's; the arithmetic is done a second time on purpose.
Invariants: whole rao throughout; an epoch that cannot be read is a difference; the last line is one JSON object.
Source: storage items and events of pallet_subtensor.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from substrateinterface import SubstrateInterface
from substrateinterface.exceptions import SubstrateRequestException

POTS = ("PendingServerEmission", "PendingValidatorEmission", "PendingOwnerCut")
TOTALS = ("created_rao", "owner_cut_rao", "miners_rao", "validators_rao", "burned_rao")
PARTS = ("uid", "miner_rao", "validator_rao", "earned_rao")
MECHANISMS_STRIDE = 4096  # events name a subnet as mechanism * 4096 + netuid

Difference = dict[str, Any]


class Unreadable(Exception):
    """The node lacks a block or its state."""


@dataclass
class Witness:
    """What one epoch paid. ``hotkeys``: parts by hotkey; ``moved``: whose stake a transaction of the block touched."""

    epoch: int
    block: int
    previous_block: int
    totals: dict[str, int]
    hotkeys: dict[str, dict[str, int]]
    moved: list[str] = field(default_factory=list)
    problems: list[Difference] = field(default_factory=list)


class Storage:
    """Raw storage of one subnet at one block."""

    def __init__(self, node: SubstrateInterface, netuid: int, block: int) -> None:
        self.node = node
        self.netuid = netuid
        self.hash = node.get_block_hash(block) if block >= 0 else None
        if self.hash is None:
            raise Unreadable(f"no block {block}")

    def get(self, item: str, *keys: Any) -> Any:
        return self.node.query("SubtensorModule", item, list(keys) or [self.netuid], block_hash=self.hash).value

    def stake(self, hotkey: str) -> int:
        return int(self.get("TotalHotkeyAlpha", hotkey, self.netuid))

    def pots(self) -> list[int]:
        return [int(self.get(item)) for item in POTS]

    def hotkeys(self) -> list[str]:
        return [str(self.get("Keys", self.netuid, uid)) for uid in range(int(self.get("SubnetworkN")))]

    def events(self) -> list[dict[str, Any]]:
        return [record.value for record in self.node.get_events(self.hash)]


def miners_parts(events: list[dict[str, Any]], netuid: int, count: int) -> list[int]:
    """By uid, as the event says."""
    parts = [0] * count
    for event in events:
        if event["event_id"] == "IncentiveAlphaEmittedToMiners":
            fields = event["attributes"]
            if fields["netuid"] % MECHANISMS_STRIDE == netuid:
                for uid, rao in enumerate(fields["emissions"][:count]):
                    parts[uid] += int(rao)
    return parts


def moved_by_transactions(events: list[dict[str, Any]], hotkeys: list[str]) -> list[str]:
    """Hotkeys that a transaction's event about stake or alpha names."""
    texts = [
        json.dumps(event["attributes"], default=str)
        for event in events
        if event["extrinsic_idx"] is not None and event["event_id"].startswith(("Stake", "Alpha", "AllBalance"))
    ]
    return [hotkey for hotkey in hotkeys if any(hotkey in text for text in texts)]


def owner_cut(node: SubstrateInterface, netuid: int, block: int, before: Storage, owner_gain: int) -> int:
    """Pending before the block, and one block's part more: as the next block shows, else as the block before did."""
    previous = int(before.get("LastEpochBlock"))
    pending = int(before.get("PendingOwnerCut"))
    try:
        after = Storage(node, netuid, block + 1)
        if int(after.get("LastEpochBlock")) == block:
            return pending + int(after.get("PendingOwnerCut"))
    except Unreadable:
        pass  # the block is the newest
    if previous == block - 1:  # nothing is ever pending in epochs of one block
        assigned = sum(int(rao) for rao in Storage(node, netuid, block).get("Emission"))
        change = int(Storage(node, netuid, block).get("SubnetAlphaOut")) - int(before.get("SubnetAlphaOut"))
        return change - assigned if assigned else owner_gain
    return 2 * pending - int(Storage(node, netuid, block - 2).get("PendingOwnerCut"))


def witness(node: SubstrateInterface, netuid: int, block: int) -> Witness:
    """The account of the epoch that ended in ``block``; raises ``Unreadable``."""
    before, after = Storage(node, netuid, block - 1), Storage(node, netuid, block)
    hotkeys, events = before.hotkeys(), after.events()
    owner = str(before.get("SubnetOwnerHotkey"))
    coldkey = before.get("SubnetOwner")
    gains = {hotkey: after.stake(hotkey) - before.stake(hotkey) for hotkey in {*hotkeys, owner}}
    moved = moved_by_transactions(events, sorted(gains))
    cut = owner_cut(node, netuid, block, before, gains[owner])
    gains[owner] -= cut
    created = sum(before.pots()) + int(after.get("SubnetAlphaOut")) - int(before.get("SubnetAlphaOut"))
    mined, assigned, kept = miners_parts(events, netuid, len(hotkeys)), after.get("Emission"), after.hotkeys()
    found = Witness(int(after.get("SubnetEpochIndex")), block, int(before.get("LastEpochBlock")), {}, {}, moved)
    for uid, hotkey in enumerate(hotkeys):
        is_owners = hotkey == owner or before.get("Owner", hotkey) == coldkey
        as_miner = 0 if is_owners else mined[uid]
        earned = gains[hotkey]
        is_kept = kept[uid] == hotkey
        if is_kept and hotkey in moved:
            earned = int(assigned[uid]) - (mined[uid] if is_owners else 0)
        elif is_kept and (earned > int(assigned[uid]) if is_owners else earned != int(assigned[uid])):
            found.problems.append(difference(found, "stake", hotkey, "earned_rao", int(assigned[uid]), earned))
        parts = {"uid": uid, "miner_rao": as_miner, "validator_rao": earned - as_miner, "earned_rao": earned}
        found.hotkeys[hotkey] = parts
    miners = sum(parts["miner_rao"] for parts in found.hotkeys.values())
    validators = sum(parts["validator_rao"] for parts in found.hotkeys.values())
    burned = created - cut - miners - validators
    found.totals = dict(zip(TOTALS, (created, cut, miners, validators, burned), strict=True))
    if burned < 0:
        found.problems.append(difference(found, "stake", None, "burned_rao", 0, burned))
    return found


def difference(found: Witness, where: str, hotkey: str | None, what: str, says: Any, is_really: Any) -> Difference:
    """``where``: the account that says something else, the chain's own ("stake") or the file's ("report")."""
    return {
        "epoch": found.epoch,
        "block": found.block,
        "where": where,
        "hotkey": hotkey,
        "what": what,
        "says": says,
        "witness": is_really,
    }


def compare(found: Witness, line: dict[str, Any]) -> list[Difference]:
    """What a line of `liquid watch --json` says otherwise."""
    pairs = [(None, name, line.get(name), found.totals[name]) for name in TOTALS]
    pairs += [(None, "epoch", line.get("epoch"), found.epoch), (None, "block", line.get("block"), found.block)]
    pairs += [(None, "first_block", line.get("first_block"), found.previous_block + 1)]
    rows = {row["hotkey"]: row for row in line["hotkeys"]}
    followed = line.get("followed")
    expected = [hotkey for hotkey in found.hotkeys if followed in (None, hotkey)]
    for hotkey in [*expected, *(name for name in rows if name not in expected)]:
        said, is_really = rows.get(hotkey), found.hotkeys.get(hotkey)
        if said is None or is_really is None:
            pairs.append((hotkey, "row", said is not None, is_really is not None))
            continue
        pairs += [(hotkey, name, said.get(name), is_really[name]) for name in PARTS]
    return [difference(found, "report", hotkey, *rest) for hotkey, *rest in pairs if rest[1] != rest[2]]


def recent(node: SubstrateInterface, netuid: int, count: int) -> list[int]:
    """Blocks that ended the last ``count`` epochs, the oldest first, as far as the node can tell."""
    head = node.get_block_number(node.get_chain_finalised_head())
    now = Storage(node, netuid, head)
    blocks: list[int] = []
    block, left = int(now.get("LastEpochBlock")), min(count, int(now.get("SubnetEpochIndex")))
    while len(blocks) < left:
        blocks.insert(0, block)
        try:
            block = int(Storage(node, netuid, block - 1).get("LastEpochBlock"))
        except (Unreadable, SubstrateRequestException):
            break
    return blocks


def reported(path: Path | None, netuid: int) -> dict[int, dict[str, Any]]:
    """Lines by the block that ended the epoch; those that say "missed" claim nothing."""
    if path is None:
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return {line["block"]: line for line in lines if line["netuid"] == netuid and not line.get("missed")}


def audit(node: SubstrateInterface, netuid: int, count: int, lines: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """All epochs, as a JSON object."""
    differences: list[Difference] = []
    found: list[Witness] = []
    for block in sorted({*recent(node, netuid, count), *lines}):
        try:
            one = witness(node, netuid, block)
        except (Unreadable, SubstrateRequestException) as error:
            epoch = lines.get(block, {}).get("epoch")
            unread = Witness(epoch, block, 0, {}, {})
            differences.append(difference(unread, "node", None, "state", None, type(error).__name__))
            continue
        is_end = int(Storage(node, netuid, block).get("LastEpochBlock")) == block
        if not is_end:
            differences.append(difference(one, "report", None, "ends an epoch", True, False))
            continue
        found.append(one)
        differences += one.problems
        if block in lines:
            differences += compare(one, lines[block])
    show(found)
    epochs = [
        {"epoch": one.epoch, "block": one.block, "is_compared": one.block in lines, **one.totals, "moved": one.moved}
        for one in found
    ]
    return {"agree": bool(found) and not differences, "epochs": epochs, "differences": differences}


def show(found: list[Witness]) -> None:
    """A table for people."""
    row = "{:>6} {:>9} {:>5}  {:>20} {:>20} {:>20} {:>20} {:>20}"
    print(row.format("epoch", "block", "keys", *(name.removesuffix("_rao").replace("_", " ") for name in TOTALS)))
    for one in found:
        amounts = [f"{one.totals[name] // 10**9:,}.{one.totals[name] % 10**9:09d}" for name in TOTALS]
        print(row.format(one.epoch, one.block, len(one.hotkeys), *amounts))
        for hotkey in one.moved:
            print(f"       stake of {hotkey} was moved by a transaction of the same block: taken from Emission")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/audit_emissions", description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="ws:// or wss:// URL of a node")
    parser.add_argument("--netuid", type=int, default=1, help="number of the subnet")
    parser.add_argument("--epochs", type=int, default=3, help="how many of the last finished epochs")
    parser.add_argument("--against", type=Path, help="output of liquid watch --json")
    options = parser.parse_args(argv)
    lines = reported(options.against, options.netuid)
    with SubstrateInterface(url=options.url) as node:
        result = audit(node, options.netuid, options.epochs, lines)
    for item in result["differences"]:
        where = f"epoch {item['epoch']} (block {item['block']}) {item['hotkey'] or 'subnet'}"
        print(f"DIFFERENCE {where}: {item['where']} says {item['what']} = {item['says']}, witness {item['witness']}")
    print(json.dumps(result))
    return 0 if result["agree"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
