"""Replay: a real run's every segment passes, and each kind of lie, told consistently, fails for its own reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from subnet.clock import run_virtual
from subnet.codec.tensors import pack, tensors_digest, unpack
from subnet.config import RunConfig
from subnet.data.corpus import Corpus
from subnet.hashing import merkle_root
from subnet.net.auth import verify_stamp
from subnet.records import Commitment
from subnet.swarm.ledger import fold
from subnet.swarm.view import RunView
from subnet.train.checkpoint import load_state
from subnet.train.engine import BackwardResult, StageEngine
from subnet.train.journal import EntryKind, Frame, Journal, JournalEntry
from subnet.train.recorder import JOURNAL, state_path
from subnet.train.wire import WireFormat
from subnet.types import Digest, Hotkey, MicrobatchId, Outcome, RoundId, StageId
from subnet.verify import replay
from subnet.verify.continuity import edge_root, merged_optim_root
from subnet.verify.replay import AuditResult, Claim, Evidence, audit_segment, fresh_optim_root
from tests.swarm.harness import Net, network
from tests.tiny import text_corpus, tiny_run

ROUND = RoundId(1)  # the second: optimisers are no longer fresh
OTHER = Digest("0" * 64)


@dataclass(frozen=True)
class Case:
    """One segment of the run, claim and evidence, with the replica's folder to read others from."""

    claim: Claim
    evidence: Evidence

    def committed(self, **changes: object) -> Case:
        """The same with another commitment."""
        commitment = self.claim.commitment.model_copy(update=changes)
        return replace(self, claim=replace(self.claim, commitment=commitment))

    def rewritten(self, index: int, body: bytes | None = None, **changes: object) -> Case:
        """The same with frame ``index`` of the segment changed, in a journal committed to accordingly."""
        frames, entries = list(self.evidence.frames), list(self.evidence.entries)
        entry = frames[index].entry.model_copy(update=changes)
        frames[index] = Frame(entry, frames[index].body if body is None else body)
        entries[entry.index] = entry
        told = replace(self, evidence=replace(self.evidence, frames=frames, entries=entries))
        return told.committed(journal_root=merkle_root([item.leaf() for item in entries]))


@dataclass(frozen=True)
class World:
    """A run that is over, on disk and in the ledger."""

    run: RunConfig
    corpus: Corpus
    view: RunView
    folders: dict[Hotkey, Path]

    def case(self, hotkey: Hotkey, segment: int, number: RoundId = ROUND) -> Case:
        round_view, folder = self.view.rounds[number], self.folders[hotkey] / "rounds" / str(number)
        commitment = round_view.commitments[hotkey]
        part = commitment.segments[segment]
        with Journal.open_read_only(folder / JOURNAL) as journal:
            frames = list(journal.frames())
        state, start = load_state(state_path(folder, segment))[0], load_state(state_path(folder, 0))[0]
        merged = merged_optim_root(self.view, round_view, hotkey)
        roots = {fresh_optim_root(self.run, len(start.params)), *([merged] if merged else [])}
        claim = Claim(hotkey, round_view.document, commitment, segment, roots)
        entries = [frame.entry for frame in frames]
        return Case(claim, Evidence(entries, frames[part.first_entry : part.end_entry], state, start))

    def of_stage(self, stage: int, *, is_last: bool = False) -> Case:
        """A segment of the busiest replica of a stage."""
        commitments = self.view.rounds[ROUND].commitments
        served = {hotkey: item for hotkey, item in commitments.items() if item.stage == stage}
        hotkey = max(served, key=lambda key: (served[key].num_entries, key))
        return self.case(hotkey, len(served[hotkey].segments) - 1 if is_last else 0)

    def audit(self, case: Case) -> AuditResult:
        return audit_segment(self.run, self.corpus, case.claim, case.evidence, verify_stamp)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    corpus, folder = text_corpus(), tmp_path_factory.mktemp("run")
    run = tiny_run(corpus, **{"round.retention_rounds": 10})

    async def main() -> Net:
        async with network(folder, run, corpus, rounds=2) as net:
            for number in range(1, 7):
                net.start_miner(f"miner-{number}")
            await net.finish()
            return net

    net = run_virtual(main())
    folders = {miner.signer.hotkey: folder / name for name, miner in net.miners.items()}
    return World(run, corpus, fold(asyncio.run(net.store.load())), folders)


def test_every_segment_of_an_honest_run_passes_bit_for_bit(world: World) -> None:
    num_segments, num_microbatches = 0, 0
    for number, round_view in world.view.rounds.items():
        for hotkey in round_view.members:
            for segment in range(len(round_view.commitments[hotkey].segments)):
                result = world.audit(world.case(hotkey, segment, number))
                assert (result.outcome, result.reason, result.error) == (Outcome.PASSED, "passed", 0.0)
                num_segments, num_microbatches = num_segments + 1, num_microbatches + result.num_microbatches
    assert num_segments > 2 * 6
    assert num_microbatches == 2 * 3 * world.run.round.microbatches  # every stage applied every one, in both rounds


def test_what_a_miner_had_in_flight_does_not_decide_how_much_memory_its_audit_takes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_kept: list[int] = []

    class Counting(StageEngine):
        def backward(self, microbatch: MicrobatchId, grads: Mapping[str, torch.Tensor] | None) -> BackwardResult:
            num_kept.append(sum(item.graph is not None for item in self._pending.values()))
            return super().backward(microbatch, grads)

    monkeypatch.setattr(replay, "StageEngine", Counting)
    case, most = world.of_stage(0), []
    for memory_bytes in (float("inf"), 1.0):
        num_kept.clear()
        result = audit_segment(
            world.run, world.corpus, case.claim, case.evidence, verify_stamp, memory_bytes=memory_bytes
        )
        assert result.outcome is Outcome.PASSED
        most.append(max(num_kept))
    assert most[0] > most[1] == 1


def index_of(case: Case, kind: EntryKind) -> int:
    return next(index for index, frame in enumerate(case.evidence.frames) if frame.entry.kind is kind)


def entry_of(case: Case, kind: EntryKind) -> JournalEntry:
    return case.evidence.frames[index_of(case, kind)].entry


def other_tokens(world: World, case: Case) -> Case:
    index = index_of(case, EntryKind.FORWARD)
    wire = WireFormat(world.run, StageId(0))
    tensors, _ = unpack(case.evidence.frames[index].body, wire.forward, max_bytes=wire.max_bytes)
    easy = {"tokens": torch.zeros_like(tensors["tokens"])}
    return case.rewritten(index, pack(easy), input_digest=tensors_digest(easy))


def other_input(world: World, case: Case) -> Case:
    """Activations that nobody sent, under a stamp and an envelope made for others."""
    index = index_of(case, EntryKind.FORWARD)
    wire, frame = WireFormat(world.run, StageId(1)), case.evidence.frames[index]
    tensors, _ = unpack(frame.body, wire.forward, max_bytes=wire.max_bytes)
    made_up = {name: item if name == "tokens" else item * 2 for name, item in tensors.items()}
    digest = tensors_digest(made_up)
    assert frame.entry.envelope is not None
    envelope = frame.entry.envelope.replace(str(frame.entry.input_digest), digest)
    return case.rewritten(index, pack(made_up), input_digest=digest, envelope=envelope)


def other_end(case: Case) -> Case:
    commitment = case.claim.commitment
    last = commitment.segments[-1].model_copy(update={"end_root": edge_root(OTHER, commitment.end_optim_root)})
    return case.committed(end_params_root=OTHER, segments=(*commitment.segments[:-1], last))


def without_step(case: Case) -> Case:
    """An inner step left out: its entry becomes the next forward's place by shifting all that follow."""
    cut = index_of(case, EntryKind.STEP)
    first = case.evidence.frames[0].entry.index
    frames = [frame for index, frame in enumerate(case.evidence.frames) if index != cut]
    entries = [entry for entry in case.evidence.entries if entry.index != first + cut]
    entries = [entry.model_copy(update={"index": index}) for index, entry in enumerate(entries)]
    frames = [Frame(entries[first + place], frame.body) for place, frame in enumerate(frames)]
    segments = [
        part.model_copy(
            update={
                "first_entry": part.first_entry - (part.first_entry > first + cut),
                "end_entry": part.end_entry - 1,
            }
        )
        for part in case.claim.commitment.segments
    ]
    told = replace(case, evidence=replace(case.evidence, frames=frames, entries=entries))
    root = merkle_root([entry.leaf() for entry in entries])
    return told.committed(journal_root=root, num_entries=len(entries), segments=tuple(segments))


def scaled(commitment: Commitment) -> dict[str, object]:
    """What a replica declares that inflates its pseudo-gradient tenfold."""
    return {"shard_digests": (OTHER, *commitment.shard_digests[1:])}


LIES: dict[str, Callable[[World], Case]] = {
    "journal-root": lambda world: world.of_stage(0).committed(journal_root=OTHER),
    "output-mismatch": lambda world: (
        lambda case: case.rewritten(index_of(case, EntryKind.FORWARD), output_digest=OTHER)
    )(world.of_stage(0)),
    "wrong-tokens": lambda world: other_tokens(world, world.of_stage(0)),
    "input-unsigned": lambda world: other_input(world, world.of_stage(1)),
    "loss": lambda world: (
        lambda case: case.rewritten(
            index_of(case, EntryKind.FORWARD), loss=0.9 * (entry_of(case, EntryKind.FORWARD).loss or 1.0)
        )
    )(world.of_stage(2)),
    "learning-rate": lambda world: (lambda case: case.rewritten(index_of(case, EntryKind.STEP), learning_rate=1.0))(
        world.of_stage(1)
    ),
    "step-schedule": lambda world: without_step(world.of_stage(1)),
    "end-root": lambda world: other_end(world.of_stage(1, is_last=True)),
    "num-steps": lambda world: (lambda case: case.committed(num_steps=case.claim.commitment.num_steps + 1))(
        world.of_stage(1, is_last=True)
    ),
    "shard-digest": lambda world: (lambda case: case.committed(**scaled(case.claim.commitment)))(
        world.of_stage(1, is_last=True)
    ),
    "norm": lambda world: (
        lambda case: case.committed(shard_norms=tuple(10 * value for value in case.claim.commitment.shard_norms))
    )(world.of_stage(1, is_last=True)),
    "start-params": lambda world: world.of_stage(1).committed(start_params_root=OTHER),
    "start-optim": lambda world: world.of_stage(1).committed(start_optim_root=OTHER),
    "wrong-document": lambda world: world.of_stage(1).committed(document=OTHER),
    "segments": lambda world: world.of_stage(1).committed(end_optim_root=OTHER),
}


@pytest.mark.parametrize("reason", sorted(LIES))
def test_each_lie_is_caught_for_its_own_reason(reason: str, world: World) -> None:
    result = world.audit(LIES[reason](world))
    assert (result.outcome, result.reason) == (Outcome.FAILED, reason)
    assert 0.0 < result.error <= 1.0


def test_an_applied_microbatch_that_the_journal_does_not_hold_is_caught(world: World) -> None:
    case = world.of_stage(1)
    commitment = case.claim.commitment
    missing = next(mb for mb in case.claim.document.microbatches() if mb not in commitment.applied)
    applied = tuple(sorted([*commitment.applied, missing]))
    tokens = commitment.num_tokens + world.run.microbatch_tokens
    assert world.audit(case.committed(applied=applied, num_tokens=tokens)).reason == "applied"


def test_frames_of_another_journal_are_caught(world: World) -> None:
    case = world.of_stage(0)
    frames = list(case.evidence.frames)
    frames[0], frames[1] = frames[1], frames[0]
    assert world.audit(replace(case, evidence=replace(case.evidence, frames=frames))).reason == "journal-leaf"


@pytest.mark.parametrize("field", ["auth", "envelope", "peer"])
def test_an_input_without_its_sender_is_unsigned(field: str, world: World) -> None:
    case = world.of_stage(1)
    told = case.rewritten(index_of(case, EntryKind.FORWARD), **{field: None})
    assert world.audit(told).reason == "input-unsigned"


def test_a_replica_cannot_have_sent_itself_its_gradient(world: World) -> None:
    case = world.of_stage(1)
    told = case.rewritten(index_of(case, EntryKind.BACKWARD), peer=case.claim.hotkey)
    assert world.audit(told).reason == "input-unsigned"


def test_a_first_stage_replica_keeps_to_its_share(world: World) -> None:
    case = world.of_stage(0)
    taken = {entry.microbatch for entry in case.evidence.entries}
    foreign = next(mb for mb in case.claim.document.microbatches() if mb not in taken)
    told = case.rewritten(index_of(case, EntryKind.FORWARD), microbatch=foreign)
    assert world.audit(told).reason == "not-in-round"


def test_another_start_state_is_caught(world: World) -> None:
    case = world.of_stage(1, is_last=True)
    moved = replace(case.evidence.state, params=case.evidence.state.params + np.float32(1e-3))
    assert world.audit(replace(case, evidence=replace(case.evidence, state=moved))).reason == "state-root"
    start = replace(case.evidence.start, params=case.evidence.start.params * np.float32(1.001))
    assert world.audit(replace(case, evidence=replace(case.evidence, start=start))).reason == "state-root"


def test_a_state_that_the_stage_cannot_have_is_refused_before_it_is_used(world: World) -> None:
    case = world.of_stage(1)
    short = replace(case.evidence.state, params=case.evidence.state.params[:-1])
    assert world.audit(replace(case, evidence=replace(case.evidence, state=short))).reason == "state-shape"
    double = replace(case.evidence.state, params=case.evidence.state.params.astype(np.float64))
    assert world.audit(replace(case, evidence=replace(case.evidence, state=double))).reason == "state-shape"


def test_a_body_that_does_not_fit_is_a_result_and_no_crash(world: World) -> None:
    case = world.of_stage(0)
    told = case.rewritten(index_of(case, EntryKind.FORWARD), b"\0" * 40)
    assert world.audit(told).reason == "body"


def test_a_segment_that_was_not_committed_fails(world: World) -> None:
    case = world.of_stage(1)
    assert world.audit(replace(case, claim=replace(case.claim, segment=9))).reason == "segments"


def test_an_optimiser_from_an_older_round_is_not_vouched_for(world: World) -> None:
    """Invariant 11: the only optimisers to start from are a fresh one and the one committed when last merged."""
    hotkey = world.of_stage(1).claim.hotkey
    first, second = world.view.rounds[RoundId(0)], world.view.rounds[ROUND]
    assert merged_optim_root(world.view, first, hotkey) is None
    assert merged_optim_root(world.view, second, hotkey) == first.commitments[hotkey].end_optim_root
    assert second.commitments[hotkey].start_optim_root == first.commitments[hotkey].end_optim_root
    assert second.commitments[hotkey].start_params_root == second.document.params_roots[1]
