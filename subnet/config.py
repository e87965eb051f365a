"""RunConfig: what all peers of a run agree on. Read from TOML, hashed, named in every message.

Not here: what one operator decides for one machine (``neurons.settings``).
Invariants: equal configurations have equal hashes; an unknown key is refused with the nearest known name; every field
has a unit and a one-line description; presets by name ship with the package (``subnet/presets``).
"""

from __future__ import annotations

import difflib
import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from subnet.errors import ConfigError
from subnet.hashing import digest_of
from subnet.types import Digest

AUTO = "auto"
LEARNED = ("anchored", "resbm")  # kinds of boundary with an encoder and a decoder
PREDICTOR_EMBEDDING = 32  # channels per token id inside a boundary's predictor


class Section(BaseModel):
    """Base of the configuration's sections."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelConfig(Section):
    """The decoder (Llama-style)."""

    vocab_size: int = Field(256, ge=2, description="number of token ids")
    width: int = Field(128, ge=8, description="residual stream, in channels")
    num_blocks: int = Field(8, ge=1, description="transformer blocks of the whole model")
    num_heads: int = Field(4, ge=1, description="query heads per block")
    num_kv_heads: int = Field(2, ge=1, description="key/value heads per block (GQA)")
    ffn_width: int = Field(352, ge=8, description="hidden width of the SwiGLU, in channels")
    seq_len: int = Field(128, ge=2, description="predicted tokens per sequence")
    rope_base: float = Field(10_000.0, gt=1, description="base of the rotary frequencies")
    norm_eps: float = Field(1e-5, gt=0, description="epsilon of RMSNorm")
    init_std: float = Field(0.02, gt=0, description="standard deviation of initial matrices")

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.width % self.num_heads or (self.width // self.num_heads) % 2:
            raise ValueError("model.width must be a multiple of 2 * model.num_heads")
        if self.num_heads % self.num_kv_heads:
            raise ValueError("model.num_heads must be a multiple of model.num_kv_heads")
        return self


class StagesConfig(Section):
    """The cut of the model."""

    num_stages: int = Field(3, ge=1, description="contiguous stages")
    blocks: tuple[int, ...] = Field((), description="blocks per stage; empty: balanced by FLOPs")


class BoundaryConfig(Section):
    """What crosses from stage to stage."""

    kind: Literal["none", "int8", "anchored", "resbm"] = Field("int8", description="back end of the boundary")
    dims: int = Field(16, ge=0, description="learned kinds: numbers per token; 0: only token ids cross")
    levels: Literal[2, 3, 4, 5, 6, 8, 16, 32, 256] = Field(16, description="learned kinds: values of a number forward")
    grad_levels: int = Field(16, ge=2, le=256, description="learned kinds: values that a gradient can have, dithered")
    grad_stride: int = Field(1, ge=1, description="learned kinds: tokens, of which the last has its gradient sent")
    predictor: bool = Field(
        False, description="whether the receiver adds what token ids alone say; anchored always does"
    )
    predictor_kernel: int = Field(8, ge=0, description="tokens that the predictor sees; 0: the last one, by a table")
    predictor_width: int = Field(64, ge=1, description="hidden width of the predictor, in channels")


def has_predictor(boundary: BoundaryConfig) -> bool:
    """Whether receivers add what the token ids alone say about the hidden state."""
    return boundary.predictor or boundary.kind == "anchored"


class DataConfig(Section):
    """The corpus and how microbatches are drawn from it."""

    source: str = Field("stdlib", description="'stdlib' or 'file:PATH' (bytes are tokens)")
    corpus_hash: str = Field(AUTO, description="sha256 of the corpus; 'auto' is resolved by the run's owner")
    sequences: int = Field(8, ge=1, description="sequences per microbatch")
    held_out_share: float = Field(0.05, gt=0, lt=1, description="share of files kept for evaluation")


class InnerConfig(Section):
    """The inner optimiser of every replica."""

    optimizer: Literal["adamw", "nadam", "muon"] = Field(
        "adamw", description="muon: for matrices in blocks, AdamW for the rest"
    )
    learning_rate: float = Field(3e-3, gt=0, description="peak learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment; nadam: at the last stage")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.1, ge=0, description="decoupled decay of matrices")
    clip_norm: float = Field(1.0, ge=0, description="gradient norm of the whole model, shared out to stages; 0: off")
    warmup_tokens: int = Field(32_768, ge=0, description="tokens of the run until the peak learning rate")
    total_tokens: int = Field(0, ge=0, description="tokens until the end of linear decay; 0: constant after warm-up")
    final_share: float = Field(0.1, ge=0, le=1, description="learning rate at the end, as a share of the peak")


class OuterConfig(Section):
    """The outer optimiser (SGD with Nesterov momentum, DiLoCo arXiv:2311.08105)."""

    learning_rate: float = Field(0.7, gt=0, description="step along the merged pseudo-gradient")
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum; lives with the shard")
    num_shards: int = Field(8, ge=1, description="shards per stage; each has two owners")


class RoundConfig(Section):
    """Size and rhythm of a round."""

    microbatches: int = Field(64, ge=1, description="microbatches per round")
    inner_steps: int = Field(16, ge=1, description="optimiser steps of every replica per round (H)")
    snapshot_steps: int = Field(8, ge=1, description="inner steps per journal segment")
    in_flight: int = Field(0, ge=0, description="microbatches in flight per first-stage replica; 0: measured")
    retention_rounds: int = Field(3, ge=1, description="rounds whose journals and snapshots are kept for audits")
    single_candidate_share: float = Field(0.1, ge=0, le=1, description="microbatches whose next hop has no choice")
    min_replicas: int = Field(2, ge=1, description="replicas per stage that a round waits for until its deadline")
    forming_timeout_s: float = Field(60.0, gt=0, description="how long FORMING waits for min_replicas, in seconds")
    training_timeout_s: float = Field(120.0, gt=0, description="TRAINING's first deadline; later ones are learnt")
    merging_timeout_s: float = Field(30.0, gt=0, description="COMMITTING's and MERGING's first deadline, in seconds")


class CustodyConfig(Section):
    """Liveness of neighbours."""

    status_interval_s: float = Field(1.0, gt=0, description="time between statuses, in seconds")
    missed_statuses: int = Field(4, ge=1, description="statuses missed before a neighbour counts as gone")
    request_timeout_s: float = Field(10.0, gt=0, description="deadline of one request between peers, in seconds")


class AuditConfig(Section):
    """Challenges and what counts as equal."""

    window_rounds: int = Field(4, ge=1, description="every replica is audited within so many rounds")
    tolerance: float = Field(1e-3, ge=0, description="relative L2 error per tensor allowed across device classes")
    lag_rounds: int = Field(2, ge=1, description="rounds after which a missing verdict raises an alarm")


class PayConfig(Section):
    """How verified work becomes score."""

    window_rounds: int = Field(16, ge=1, description="rounds over which work counts")
    half_life_rounds: float = Field(8.0, gt=0, description="rounds after which work counts half")


class RunConfig(Section):
    """The agreed configuration of one run."""

    name: str = Field("localnet", min_length=1, max_length=40, description="name of the run")
    seed: int = Field(1, ge=0, description="seed of parameters, data order and routing")
    device: Literal["cpu", "cuda"] = Field("cpu", description="kind of device that all compute on; audits need one")
    compiled: bool = Field(False, description="whether torch.compile makes the stages; needs a C++ compiler everywhere")
    model: ModelConfig = ModelConfig()
    stages: StagesConfig = StagesConfig()
    boundary: BoundaryConfig = BoundaryConfig()
    data: DataConfig = DataConfig()
    inner: InnerConfig = InnerConfig()
    outer: OuterConfig = OuterConfig()
    round: RoundConfig = RoundConfig()
    custody: CustodyConfig = CustodyConfig()
    audit: AuditConfig = AuditConfig()
    pay: PayConfig = PayConfig()

    @model_validator(mode="after")
    def _boundary_fits(self) -> Self:
        if self.boundary.kind in LEARNED and self.boundary.dims > self.model.width:
            raise ValueError("boundary.dims must not exceed model.width")
        if self.boundary.kind in LEARNED and self.model.seq_len % self.boundary.grad_stride:
            raise ValueError("model.seq_len must be a multiple of boundary.grad_stride")
        return self

    @model_validator(mode="after")
    def _cut_fits(self) -> Self:
        stages = self.stages
        if stages.num_stages > self.model.num_blocks:
            raise ValueError("stages.num_stages must not exceed model.num_blocks")
        if stages.blocks and (len(stages.blocks) != stages.num_stages or sum(stages.blocks) != self.model.num_blocks):
            raise ValueError("stages.blocks must hold one number per stage and add up to model.num_blocks")
        if min(stages.blocks, default=1) < 1:
            raise ValueError("stages.blocks must give every stage a block")
        return self

    @property
    def microbatch_tokens(self) -> int:
        """Predicted tokens in one microbatch."""
        return self.data.sequences * self.model.seq_len

    @property
    def round_tokens(self) -> int:
        """Predicted tokens in one round without re-leased microbatches."""
        return self.round.microbatches * self.microbatch_tokens

    def hash(self) -> Digest:
        """The digest by which peers know the run."""
        return digest_of(self.model_dump(mode="json"))

    def to_toml(self) -> str:
        """The configuration as a file that ``load_run_config`` reads back to the same hash."""
        plain = self.model_dump(mode="json")
        lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items() if not isinstance(value, dict)]
        for section, fields in plain.items():
            if isinstance(fields, dict):
                lines += ["", f"[{section}]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
        return "\n".join(lines) + "\n"

    def with_values(self, **paths: Any) -> RunConfig:
        """A copy with dotted settings replaced, as in ``with_values(**{"round.microbatches": 8})``."""
        plain = self.model_dump(mode="json")
        for path, value in paths.items():
            *sections, field = path.split(".")
            place = plain
            for section in sections:
                place = place.setdefault(section, {})
            place[field] = value
        return parse_run_config(plain)


def _known_names(model: type[BaseModel], prefix: str = "") -> list[str]:
    names = []
    for name, field in model.model_fields.items():
        names.append(prefix + name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += _known_names(field.annotation, f"{prefix}{name}.")
    return names


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    known, lines = _known_names(model), []
    for item in error.errors():
        path = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            near = difflib.get_close_matches(path, known, n=1, cutoff=0.4)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            lines.append(f"{path!r} is not a setting{hint}")
        else:
            lines.append(f"{path or 'configuration'}: {item['msg']}")
    return "; ".join(lines) + "."


def parse_run_config(plain: dict[str, Any]) -> RunConfig:
    """A RunConfig from plain values; raises ``ConfigError`` that names each wrong setting and the nearest known one."""
    try:
        return RunConfig.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(_explain(error, RunConfig)) from None


def preset_names() -> list[str]:
    """Names of the presets that ship with the package."""
    folder = resources.files("subnet") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def load_run_config(name_or_path: str) -> RunConfig:
    """A preset by name or a TOML file by path; raises ``ConfigError``."""
    if name_or_path in preset_names():
        text = (resources.files("subnet") / "presets" / f"{name_or_path}.toml").read_text()
    elif Path(name_or_path).is_file():
        text = Path(name_or_path).read_text()
    else:
        raise ConfigError(f"There is no preset or file {name_or_path!r}; presets: {', '.join(preset_names())}.")
    try:
        return parse_run_config(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name_or_path} is not TOML: {error}.") from None
