"""Epochs for people (a table that also reads well as plain text), for spreadsheets (CSV) and for programs (JSON lines).

Not here: the figures (``subnet.watch.emissions``). Pure: reports in, renderables or text out.
Invariants: what was paid is shown to the rao; a missed epoch is said and has no figures.
"""

from __future__ import annotations

import csv
import io
import json

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from subnet.chain.base import RAO_PER_ALPHA
from subnet.chain.emissions import Tip
from subnet.watch.emissions import EpochReport, Missed, Row, as_json

FULL_WIDTH = 215  # columns that a whole row takes
SHORT_HOTKEY = 8  # characters
HIDDEN_DIGITS = 5  # of a stake on a narrow terminal; what was paid is never cut

CSV_ROW = (
    "rank",
    "rank_change",
    "uid",
    "hotkey",
    "stake_rao",
    "weight",
    "incentive",
    "consensus",
    "trust",
    "dividends",
    "miner_rao",
    "validator_rao",
    "earned_rao",
)
CSV_EPOCH = ("netuid", "epoch", "block", "created_rao", "owner_cut_rao", "burned_rao")


def alpha(rao: int) -> str:
    """To the rao, in alpha."""
    sign, rao = ("-", -rao) if rao < 0 else ("", rao)
    return f"{sign}{rao // RAO_PER_ALPHA:,}.{rao % RAO_PER_ALPHA:09d}"


def json_lines(found: EpochReport | Missed) -> str:
    """One line per epoch."""
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in as_json(found))


def csv_header() -> str:
    """The first line."""
    return ",".join((*CSV_EPOCH, *CSV_ROW)) + "\n"


def csv_lines(found: EpochReport) -> str:
    """One line per hotkey; what is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in found.hotkeys:
        writer.writerow([getattr(found, name) for name in CSV_EPOCH] + [getattr(row, name) for name in CSV_ROW])
    return text.getvalue()


def missed_text(found: Missed) -> str:
    """What happened, and the remedy."""
    which = f"epoch {found.first}" if found.first == found.last else f"epochs {found.first} to {found.last}"
    return f"{which} missed: nobody watched, and the node no longer has the state; an archive node has"


def headline(found: EpochReport) -> str:
    """The subnet's totals in one line."""
    return (
        f"epoch {found.epoch} (blocks {found.first_block}-{found.block}): created {alpha(found.created_rao)} | "
        f"miners {alpha(found.miners_rao)} | validators {alpha(found.validators_rao)} | "
        f"owner's cut {alpha(found.owner_cut_rao)} | burned {alpha(found.burned_rao)} ({found.burned_share:.2%})"
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _change(row: Row) -> str:
    if row.rank_change is None:
        return "new"
    return f"{row.rank_change:+d}" if row.rank_change else "="


def _mark(row: Row) -> str:
    notes = [note for note, holds in (("owner's", row.is_owners), ("gave its place away", row.is_replaced)) if holds]
    return ", ".join(notes)


def _cells(row: Row, has_before: bool, is_narrow: bool) -> dict[str, str]:
    """A row by column; a narrow terminal gets short hotkeys and no intermediate figures of consensus."""
    shares = {
        "weight": row.weight,
        "incentive": row.incentive,
        "consensus": row.consensus,
        "trust": row.trust,
        "dividends": row.dividends,
    }
    return {
        "rank": str(row.rank),
        "+/-": _change(row) if has_before else "-",
        "uid": str(row.uid),
        "hotkey": f"{row.hotkey[:SHORT_HOTKEY]}…" if is_narrow else row.hotkey,
        "stake": alpha(row.stake_rao)[: -HIDDEN_DIGITS if is_narrow else None],
        **{name: _share(share) for name, share in shares.items() if not is_narrow or name in ("weight", "incentive")},
        "as miner": alpha(row.miner_rao),
        "as validator": alpha(row.validator_rao),
        "earned": alpha(row.earned_rao),
        "": _mark(row),
    }


def table(found: EpochReport, has_before: bool, width: int) -> RenderableType:
    """Totals and a row per hotkey, the best paid first. ``has_before``: whether changes of rank are known."""
    ordered = sorted(found.hotkeys, key=lambda row: (row.rank, row.uid))
    cells = [_cells(row, has_before, width < FULL_WIDTH) for row in ordered]
    sheet = Table(expand=False)
    for name in cells[0] if cells else ():
        sheet.add_column(name, justify="left" if name in ("hotkey", "") else "right", no_wrap=name != "")
    for row in cells:
        sheet.add_row(*row.values())
    parts: list[RenderableType] = [Text(headline(found)), sheet]
    if found.followed is not None and not found.hotkeys:
        parts[1] = Text(f"{found.followed} had no place in the subnet.")
    parts += [Text(f"left since the epoch before: {hotkey}") for hotkey in found.left]
    return Group(*parts)


def footer(tip: Tip) -> str:
    """What is going on between two epochs."""
    left, pots = max(0, tip.last_epoch_block + tip.tempo_blocks - tip.block), tip.pending
    return (
        f"block {tip.block}: epoch {tip.epoch + 1} ends in {left} blocks; waiting to be paid: "
        f"miners {alpha(pots.miners)}, validators {alpha(pots.validators)}, owner {alpha(pots.owner)}"
    )
