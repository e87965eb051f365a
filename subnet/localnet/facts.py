"""Facts about a run that has ended: its ledger, its model, its chain.

Not here: what they should be (``subnet.localnet.checks``). Invariant: nothing is taken from what a program says of
itself: the ledger is folded anew, parameters are checked against the digests in it, losses are computed here.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch

from incentives.scores import ScoreRow, fold_scores
from subnet.config import RunConfig
from subnet.data.batches import Tokens, held_out_batches
from subnet.data.corpus import Corpus
from subnet.errors import Missing
from subnet.model.flops import stage_flops_per_token
from subnet.model.stages import FullModel, full_model
from subnet.net.base import PeerAddress, Peers
from subnet.net.blobs import shard_key
from subnet.records import Commitment, LedgerEntry, LedgerKind, ReplicaReady, body_of
from subnet.swarm.view import RunView
from subnet.train import merge
from subnet.train.engine import StageEngine
from subnet.types import Hotkey, MicrobatchId, StageId

Vector = npt.NDArray[np.float32]

EVALUATED_BATCHES = 16  # of held-out text; 16 x 8 x 128 tokens bring the standard error under 0.02 nats


async def merged_params(view: RunView, peers: Peers, orchestrator: PeerAddress) -> list[Vector]:
    """Every stage's parameters after the last merge, from the blobs of its owners; raises ``Missing``."""
    stages = []
    for number in range(view.run.stages.num_stages):
        stage = StageId(number)
        # In a thread, so that this program can see its children stop meanwhile: the first engine loads half of torch.
        flat = await asyncio.to_thread(_initial, view.run, stage)
        slices = merge.shard_slices(len(flat), view.run.outer.num_shards)
        for shard, final in view.finals_of(stage).items():
            flat[slices[shard]] = await _shard(view, peers, orchestrator, stage, shard, final.params_digest)
        stages.append(flat)
    return stages


def _initial(run: RunConfig, stage: StageId) -> Vector:
    return StageEngine(run, stage).params()


async def _shard(
    view: RunView, peers: Peers, orchestrator: PeerAddress, stage: StageId, shard: int, digest: str
) -> Vector:
    final = view.finals_of(stage)[shard]
    for owner in final.owners:
        key = shard_key(view.run_hash, final.round, stage, owner, shard, "params")
        try:
            body = await peers.request(orchestrator, "GET", f"/v1/blobs/{key}", timeout_s=10.0)
        except Missing:
            continue
        values = np.frombuffer(body, dtype="<f4").astype(np.float32)
        if merge.shard_digest(values) == digest:
            return values
    raise Missing(f"No copy of shard {shard} of stage {stage} has the digest that the ledger names.")


def held_out_losses(run: RunConfig, corpus: Corpus, params: Sequence[Vector]) -> tuple[float, float | None]:
    """Loss of the model and of the model without its middle stage (None: it has none), in nats per token."""
    model = full_model(run)
    model.load_stages(params)
    batches = held_out_batches(run, corpus, EVALUATED_BATCHES)
    middle = run.stages.num_stages // 2
    has_middle = 0 < middle < run.stages.num_stages - 1
    return _loss(model, batches, ()), _loss(model, batches, (middle,)) if has_middle else None


@torch.no_grad()
def _loss(model: FullModel, batches: Sequence[Tokens], skip: Sequence[int]) -> float:
    return float(np.mean([model.loss(torch.from_numpy(batch), skip=skip).item() for batch in batches]))


def digests_differed(entries: Sequence[LedgerEntry], names: Mapping[Hotkey, str]) -> list[str]:
    """Replicas that proved another parameters' root than others of their stage at the same round edge."""
    roots: dict[tuple[int, int], Counter[str]] = {}
    proofs: list[tuple[Hotkey, ReplicaReady]] = []
    for entry in entries:
        if entry.kind is LedgerKind.READY:
            body = body_of(entry)
            assert isinstance(body, ReplicaReady)
            proofs.append((entry.author, body))
            roots.setdefault((body.round, body.stage), Counter())[body.params_root] += 1
    most = {key: votes.most_common(1)[0][0] for key, votes in roots.items()}
    return [
        f"{names.get(hotkey, hotkey)} in round {body.round}"
        for hotkey, body in proofs
        if body.params_root != most[body.round, body.stage]
    ]


def pay(entries: Sequence[LedgerEntry], run: RunConfig) -> tuple[dict[Hotkey, float], int]:
    """Points by hotkey at the end of the ledger, and how many (stage, microbatch) were paid twice in the pay window."""
    flops = [stage_flops_per_token(run, StageId(stage)) for stage in range(run.stages.num_stages)]
    scores = fold_scores(entries, run, flops)
    return dict(scores.by_hotkey), paid_twice(entries, scores.rows)


def paid_twice(entries: Sequence[LedgerEntry], rows: Sequence[ScoreRow]) -> int:
    """By how much what was paid exceeds the different ids, per stage, in the commitments that it was paid for."""
    num_paid: Counter[StageId] = Counter()
    places = {(row.hotkey, row.round) for row in rows if row.num_paid}
    for row in rows:
        num_paid[row.stage] += row.num_paid
    done: dict[StageId, set[MicrobatchId]] = {}
    for entry in entries:
        if entry.kind is LedgerKind.COMMITTED:
            body = body_of(entry)
            assert isinstance(body, Commitment)
            if (entry.author, body.round) in places:
                done.setdefault(body.stage, set()).update(body.applied)
    return sum(max(0, num - len(done.get(stage, ()))) for stage, num in num_paid.items())
