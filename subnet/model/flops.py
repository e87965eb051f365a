"""How much work and memory a stage is, from the RunConfig alone.

Counted as in the PaLM paper, appendix B (algorithms.md section 9): 2 FLOPs per multiply-add, backward twice the
forward, attention not halved for causality, no recomputation, the embedding's lookup is free and the head's product
is not. Two counts: model FLOPs are those of the architecture without boundaries, which MFU counts; stage FLOPs are
these and the boundary ends' and predictors', which is the work that pay counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from subnet.config import PREDICTOR_EMBEDDING, ModelConfig, RunConfig, has_predictor
from subnet.types import StageId

TRAINING_FACTOR = 3  # forward, and a backward of twice the forward
STATE_BYTES = 4 * 4  # parameter, gradient and two moments in fp32


def block_parameters(model: ModelConfig) -> int:
    """Parameters of one block without its gains."""
    head_width = model.width // model.num_heads
    attention = model.width * head_width * (2 * model.num_heads + 2 * model.num_kv_heads)
    return attention + 3 * model.width * model.ffn_width


def _forward_flops(model: ModelConfig, num_blocks: int, has_head: bool) -> float:
    attention = 4.0 * model.seq_len * model.width
    head = 2.0 * model.width * model.vocab_size if has_head else 0.0
    return num_blocks * (2.0 * block_parameters(model) + attention) + head


def balanced_cut(run: RunConfig) -> tuple[int, ...]:
    """Blocks per stage with the smallest largest stage; of equals, the one whose earlier stages are larger."""
    model, num_stages = run.model, run.stages.num_stages
    best: tuple[float, tuple[int, ...]] | None = None
    for sizes in _compositions(model.num_blocks, num_stages):
        costs = [_forward_flops(model, size, index == num_stages - 1) for index, size in enumerate(sizes)]
        spread = sum(cost * cost for cost in costs)
        key = (max(costs) + spread * 1e-18, tuple(-size for size in sizes))
        if best is None or key < best:
            best = key
    assert best is not None
    return tuple(-size for size in best[1])


def _compositions(total: int, parts: int) -> Sequence[tuple[int, ...]]:
    """All ways to cut ``total`` blocks into ``parts`` stages whose sizes differ by at most two."""
    if parts == 1:
        return [(total,)]
    mean = total / parts
    low, high = max(1, int(mean) - 1), int(mean) + 2
    return [
        (size, *rest)
        for size in range(low, min(high, total - parts + 1) + 1)
        for rest in _compositions(total - size, parts - 1)
    ]


def stage_blocks(run: RunConfig, stage: StageId) -> int:
    """Number of blocks of a stage."""
    return (run.stages.blocks or balanced_cut(run))[stage]


def stage_flops_per_token(run: RunConfig, stage: StageId) -> float:
    """FLOPs of forward and backward per predicted token, boundary ends and predictors included."""
    return stage_model_flops_per_token(run, stage) + boundary_flops_per_token(run, stage)


def stage_model_flops_per_token(run: RunConfig, stage: StageId) -> float:
    """Of these, the FLOPs of the uncompressed architecture: those that MFU counts."""
    is_last = stage == run.stages.num_stages - 1
    return TRAINING_FACTOR * _forward_flops(run.model, stage_blocks(run, stage), is_last)


def boundary_flops_per_token(run: RunConfig, stage: StageId) -> float:
    """The rest: FLOPs of a stage's boundary ends and predictors, reported as overhead and never as model FLOPs."""
    return TRAINING_FACTOR * sum(2.0 * size for size in boundary_matrices(run, stage))


def boundary_matrices(run: RunConfig, stage: StageId) -> tuple[int, ...]:
    """Sizes of the matrices in a stage's entry and exit; tables of token ids are looked up and not counted."""
    boundary, width = run.boundary, run.model.width
    num_exits, num_entries = int(stage < run.stages.num_stages - 1), int(stage > 0)
    end, sizes = boundary.dims * width, []
    if boundary.kind == "resbm":
        sizes += [end] * (num_exits + num_entries)
    if boundary.kind == "anchored":
        reader = [end, end, width * width]
        sizes += reader * num_entries + [end, *reader, width * run.model.vocab_size] * num_exits
    window = boundary.predictor_kernel * PREDICTOR_EMBEDDING * boundary.predictor_width
    sizes += [window, boundary.predictor_width * width] * (num_predictors(run, stage) * bool(boundary.predictor_kernel))
    return tuple(sizes)


def num_predictors(run: RunConfig, stage: StageId) -> int:
    """In place of the embedding or at the entry, and at an anchored exit."""
    is_last = stage == run.stages.num_stages - 1
    return int(has_predictor(run.boundary)) + int(run.boundary.kind == "anchored" and not is_last)


def model_flops_per_token(run: RunConfig) -> float:
    """Model FLOPs of all stages per predicted token: 6 N + 12 L d T with L blocks of width d over T tokens.

    N: parameters in matrices of the blocks and the head; the input table and the norms' gains are not in it.
    """
    return sum(stage_model_flops_per_token(run, StageId(stage)) for stage in range(run.stages.num_stages))


def stage_parameters(run: RunConfig, stage: StageId) -> int:
    """Number of parameters of a stage."""
    model, blocks = run.model, stage_blocks(run, stage)
    table = model.vocab_size * model.width
    is_last = stage == run.stages.num_stages - 1
    edges = table * (int(stage == 0) + int(is_last)) + (model.width if is_last else 0)
    boundary = run.boundary
    letters = bool(boundary.predictor_kernel) * model.vocab_size * PREDICTOR_EMBEDDING
    edges += num_predictors(run, stage) * (table + letters)
    if has_predictor(boundary) and stage == 0:
        edges -= table  # a predictor's takes the embedding's place
    if boundary.kind == "anchored" and not is_last:
        edges += 2 * model.width  # gains at the exit and in its guess
    return blocks * (block_parameters(model) + 2 * model.width) + edges + sum(boundary_matrices(run, stage))


def stage_share(run: RunConfig, stage: StageId) -> float:
    """A stage's share of the model's parameters."""
    whole = sum(stage_parameters(run, StageId(number)) for number in range(run.stages.num_stages))
    return stage_parameters(run, stage) / whole


def stage_memory_bytes(run: RunConfig, stage: StageId, pending: int) -> int:
    """Estimate: parameters with optimiser, plus the kept graphs of ``pending`` microbatches.

    A block keeps about 16 + 4 * ffn_width / width fp32 values per channel and token (measured shapes of its graph).
    """
    model = run.model
    per_token = stage_blocks(run, stage) * (16 * model.width + 4 * model.ffn_width) * 4
    return stage_parameters(run, stage) * STATE_BYTES + pending * run.microbatch_tokens * per_token


def depth_that_fits(run: RunConfig, stage: StageId, memory_bytes: float, wanted: int) -> tuple[int, int]:
    """Microbatches in flight, at most ``wanted`` and at least 1, and how many of them may keep their graphs.

    Each may have parameters of its own, for a step may come between any two; tokens and what crossed are small beside
    them. Depth comes before graphs: a stage that computes a forward twice is slower by a third, one that waits is idle.
    """
    version = 4 * stage_parameters(run, stage)
    graph = stage_memory_bytes(run, stage, 1) - stage_memory_bytes(run, stage, 0)
    # One graph is always there: the one that is being computed.
    free = memory_bytes - stage_memory_bytes(run, stage, 1)
    depth = 1 + int(max(0, min(wanted - 1, free / version)))
    besides = int(max(0, min(depth - 1, (free - (depth - 1) * version) / graph)))
    return depth, depth if besides == depth - 1 else besides


def largest_shard_bytes(run: RunConfig) -> int:
    """Bytes of the largest shard of any stage in fp32."""
    largest = max(stage_parameters(run, StageId(stage)) for stage in range(run.stages.num_stages))
    return 4 * -(-largest // run.outer.num_shards)
