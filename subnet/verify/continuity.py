"""Continuity: a replica's round starts from a state that the ledger vouches for, and its segments follow one another.

Not here: whether the work leads from start to end (``subnet.verify.replay``). Pure: a commitment is held
against the ledger; no tensor is looked at.
Invariant 11: no replica starts a segment from a state that nobody committed. Parameters are the merged ones that the
round document names; the inner optimiser is the one that this hotkey committed to when it was last merged at this
stage, or a fresh one; segment k+1 starts at the root where segment k ends.
Source: design.md sections 7 and 10.
"""

from __future__ import annotations

from collections.abc import Collection

from subnet.hashing import EMPTY_ROOT, digest_of
from subnet.records import Commitment, RoundDocument
from subnet.swarm.view import RoundView, RunView
from subnet.types import Digest, Hotkey

WRONG_DOCUMENT = "wrong-document"  # made for another round document or stage
SEGMENTS = "segments"  # roots or entries of the segments leave a gap
START_PARAMS = "start-params"  # not the agreed parameters
START_OPTIM = "start-optim"  # an inner optimiser that nobody committed


def edge_root(params_root: Digest, optim_root: Digest) -> Digest:
    """Root of a state that carries nothing in flight, as at every round edge (``StageState.root``)."""
    return digest_of([params_root, optim_root, EMPTY_ROOT])


def merged_optim_root(view: RunView, before: RoundView, hotkey: Hotkey) -> Digest | None:
    """Inner optimiser that ``hotkey`` committed to in the last round before ``before`` that it was merged in.

    None where that was at another stage, never, or longer ago than a view remembers.
    """
    for number in sorted((number for number in view.rounds if number < before.round), reverse=True):
        ended = view.rounds[number]
        if ended.closed is not None and ended.closed.committed and hotkey in ended.members:
            commitment, entry = ended.commitments[hotkey], before.entry_of(hotkey)
            return commitment.end_optim_root if entry is not None and entry.stage == commitment.stage else None
    return None


def broken_link(
    commitment: Commitment, document: RoundDocument, hotkey: Hotkey, optim_roots: Collection[Digest]
) -> str:
    """Why a commitment doesn't continue what the ledger holds; "" if it does.

    optim_roots: inner optimisers from which ``hotkey`` may start this round (``merged_optim_root``, and a fresh one).
    """
    entry = next((entry for entry in document.roster if entry.hotkey == hotkey), None)
    if entry is None or entry.stage != commitment.stage or commitment.document != document.record_digest():
        return WRONG_DOCUMENT
    if commitment.start_params_root != document.params_roots[commitment.stage]:
        return START_PARAMS
    if commitment.start_optim_root not in optim_roots:
        return START_OPTIM
    return "" if _follows(commitment) else SEGMENTS


def _follows(commitment: Commitment) -> bool:
    """Whether the segments cover the journal without a gap and start and end at the committed states."""
    if not commitment.segments:
        return False
    entries, root = 0, edge_root(commitment.start_params_root, commitment.start_optim_root)
    for segment in commitment.segments:
        if segment.first_entry != entries or segment.end_entry < entries or segment.start_root != root:
            return False
        entries, root = segment.end_entry, segment.end_root
    end_root = edge_root(commitment.end_params_root, commitment.end_optim_root)
    return entries == commitment.num_entries and root == end_root
