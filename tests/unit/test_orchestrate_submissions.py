"""What peers may put into the ledger, and what is refused: every rule of ``submissions`` against a living round."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import pytest

from subnet.clock import run_virtual
from subnet.errors import Forbidden, LiquidError, Malformed, OutOfTurn
from subnet.hashing import sha256
from subnet.net.auth import dev_signer
from subnet.net.base import relay_url
from subnet.records import Commitment, LossItem, LossReport, SegmentRoots, Verdict
from subnet.swarm.roster import shard_owners
from subnet.swarm.view import RoundView
from subnet.types import Hotkey, MicrobatchId, Outcome, Phase, Role, RoundId, StageId
from tests.unit.fake_swarm import MINERS, RUN, Conduct, FakeSwarm, commitment, fake_swarm, ready, registration, shard

STRANGER, VALIDATOR = Hotkey("stranger"), Hotkey("validator")
MUTE = Conduct(never_commits=True)


def run(main: Coroutine[Any, Any, None]) -> None:
    run_virtual(main)


def current_of(swarm: FakeSwarm) -> RoundView:
    assert swarm.view.round is not None
    return swarm.view.round


def loser_of(swarm: FakeSwarm) -> tuple[Hotkey, Hotkey]:
    """A replica of the first stage, and one of the last."""
    current = current_of(swarm)
    return current.stage_roster(StageId(0))[0], current.stage_roster(StageId(1))[0]


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"run_hash": sha256(b"another")}, Forbidden, sha256(b"another")[:12]),
        ({"corpus_hash": sha256(b"another")}, Forbidden, sha256(b"another")[:12]),
        ({"role": Role.ORCHESTRATOR}, Forbidden, "owner"),
        ({"tokens_per_s": 0.0}, Malformed, "tokens per second"),
        ({"tokens_per_s": 1e12}, Malformed, "tokens per second"),
        ({"peak_flops_per_s": 0.0}, Malformed, "peak"),
        ({"peak_flops_per_s": -1.0}, Malformed, "peak"),
        ({"peak_flops_per_s": 1e18}, Malformed, "peak"),
        ({"url": "http://user@miner.test:1/path"}, Malformed, "address"),
        ({"url": relay_url("http://relay.test:1/relay", dev_signer("//other").hotkey)}, Malformed, "another peer"),
    ],
)
def test_a_registration_that_does_not_fit_the_run_says_why(
    changes: dict[str, object], error: type[LiquidError], text: str
) -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            with pytest.raises(error, match=text):
                await swarm.post(STRANGER, "/v1/register", registration(**changes))
            assert STRANGER not in swarm.view.peers

    run(main())


def test_registering_again_under_another_address_keeps_stage_and_place_but_the_role_cannot_change() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.reaches(Phase.TRAINING, 0)
            stage = swarm.view.peers[MINERS[2]].stage
            await swarm.post(MINERS[2], "/v1/register", registration(url="http://moved.test:2"))
            assert swarm.view.peers[MINERS[2]].stage == stage
            assert swarm.view.peers[MINERS[2]].registration.url == "http://moved.test:2"
            with pytest.raises(Forbidden):
                await swarm.post(MINERS[2], "/v1/register", registration(role=Role.VALIDATOR))

    run(main())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"round": RoundId(7)}, OutOfTurn),
        ({"stage": StageId(1)}, Malformed),
        ({"document": sha256(b"another document")}, Malformed),
        ({"shard_digests": (sha256(b""),)}, Malformed),
        ({"shard_norms": (1.0, 1.0, 1.0)}, Malformed),
        ({"applied": (MicrobatchId(3), MicrobatchId(1)), "num_tokens": 2 * RUN.microbatch_tokens}, Malformed),
        ({"applied": (MicrobatchId(1), MicrobatchId(1)), "num_tokens": 2 * RUN.microbatch_tokens}, Malformed),
        ({"applied": (MicrobatchId(99),), "num_tokens": RUN.microbatch_tokens}, Malformed),
        ({"num_tokens": 1}, Malformed),
        (
            {"segments": (SegmentRoots(first_entry=1, end_entry=2, start_root=sha256(b""), end_root=sha256(b"")),)},
            Malformed,
        ),
        ({"num_entries": 3}, Malformed),
    ],
)
def test_a_commitment_that_contradicts_the_round_is_refused(
    changes: dict[str, object], error: type[LiquidError]
) -> None:
    async def main() -> None:
        async with fake_swarm(**{name.replace("-", "_"): MUTE for name in MINERS}) as swarm:
            await swarm.reaches(Phase.COMMITTING, 0)
            first, _ = loser_of(swarm)
            with pytest.raises(error):
                await swarm.post(first, "/v1/commitment", commitment(current_of(swarm), first, **changes))
            assert not current_of(swarm).commitments

    run(main())


def test_a_commitment_counts_once_in_its_phase_and_cannot_be_replaced() -> None:
    async def main() -> None:
        async with fake_swarm(**{name.replace("-", "_"): MUTE for name in MINERS}) as swarm:
            await swarm.reaches(Phase.TRAINING, 0)
            first, last = loser_of(swarm)
            early: Commitment = commitment(current_of(swarm), first)
            with pytest.raises(OutOfTurn):
                await swarm.post(first, "/v1/commitment", early)
            await swarm.reaches(Phase.COMMITTING, 0)
            before = swarm.view.seq
            await swarm.post(first, "/v1/commitment", early)
            await swarm.post(first, "/v1/commitment", early)  # a retry after a lost answer
            assert swarm.view.seq == before + 1
            with pytest.raises(OutOfTurn):
                await swarm.post(first, "/v1/commitment", commitment(current_of(swarm), first, num_steps=9))
            with pytest.raises(Forbidden):
                await swarm.post(STRANGER, "/v1/commitment", commitment(current_of(swarm), last))

    run(main())


def test_only_the_last_stage_reports_losses_of_the_round() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.reaches(Phase.TRAINING, 0)
            first, last = loser_of(swarm)
            item = LossItem(microbatch=MicrobatchId(0), loss=2.0, path=(first, last))
            report = LossReport(round=RoundId(0), items=(item,))
            with pytest.raises(Forbidden):
                await swarm.post(first, "/v1/report", report)
            foreign = LossItem(microbatch=MicrobatchId(99), loss=2.0, path=())
            for items in ((), (foreign,)):
                with pytest.raises(Malformed):
                    await swarm.post(last, "/v1/report", LossReport(round=RoundId(0), items=items))
            await swarm.post(last, "/v1/report", report)
            before = swarm.view.seq
            await swarm.post(last, "/v1/report", report)
            assert swarm.view.seq == before
            assert current_of(swarm).losses == {MicrobatchId(0): item}

    run(main())


def test_only_owners_publish_shards_and_each_once() -> None:
    async def main() -> None:
        lazy = Conduct(skips_shards=True)
        async with fake_swarm(**{name.replace("-", "_"): lazy for name in MINERS}) as swarm:
            await swarm.reaches(Phase.MERGING, 0)
            current, stage = current_of(swarm), StageId(0)
            owners = shard_owners(swarm.view, RoundId(0), stage, 0)
            other = next(hotkey for hotkey in MINERS if hotkey not in owners)
            with pytest.raises(Forbidden):
                await swarm.post(other, "/v1/shard", shard(current, stage, 0))
            with pytest.raises(Forbidden):
                await swarm.post(owners[0], "/v1/shard", shard(current, stage, 5))
            await swarm.post(owners[0], "/v1/shard", shard(current, stage, 0))
            before = swarm.view.seq
            await swarm.post(owners[0], "/v1/shard", shard(current, stage, 0))
            assert swarm.view.seq == before
            with pytest.raises(OutOfTurn):
                await swarm.post(owners[0], "/v1/shard", shard(current, stage, 0, liar=owners[0]))

    run(main())


def test_readiness_is_proved_between_rounds_for_ones_own_stage() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.reaches(Phase.TRAINING, 0)
            mine = ready(swarm.view, MINERS[0])
            with pytest.raises(OutOfTurn):
                await swarm.post(MINERS[0], "/v1/ready", mine)
            other_stage = mine.model_copy(update={"stage": StageId(1 - mine.stage)})
            for sender, record in ((STRANGER, mine), (MINERS[0], other_stage)):
                with pytest.raises(Forbidden):
                    await swarm.post(sender, "/v1/ready", record)

    run(main())


def test_only_validators_judge_and_only_what_was_committed() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.post(VALIDATOR, "/v1/register", registration(role=Role.VALIDATOR))
            await swarm.closes(0)
            verdict = Verdict(
                round=RoundId(0),
                hotkey=MINERS[0],
                segment=0,
                outcome=Outcome.PASSED,
                reason="equal",
                error=0.0,
                num_microbatches=1,
                cost_s=1.0,
                beacon=sha256(b""),
            )
            with pytest.raises(Forbidden):
                await swarm.post(MINERS[1], "/v1/verdict", verdict)
            for update in ({"hotkey": STRANGER}, {"round": RoundId(9)}):
                with pytest.raises(OutOfTurn):
                    await swarm.post(VALIDATOR, "/v1/verdict", verdict.model_copy(update=update))
            await swarm.post(VALIDATOR, "/v1/verdict", verdict)
            await swarm.post(VALIDATOR, "/v1/verdict", verdict)
            assert [(item.author, item.verdict) for item in swarm.view.verdicts] == [(VALIDATOR, verdict)]

    run(main())


def test_who_is_not_admitted_in_a_role_cannot_register_in_it() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            await swarm.kill()
            swarm.admit = lambda hotkey, role: role is Role.MINER or hotkey == VALIDATOR
            await swarm.start()
            with pytest.raises(Forbidden, match="validator"):
                await swarm.post(STRANGER, "/v1/register", registration(role=Role.VALIDATOR))
            assert STRANGER not in swarm.view.peers
            await swarm.post(VALIDATOR, "/v1/register", registration(role=Role.VALIDATOR))
            await swarm.post(STRANGER, "/v1/register", registration())

    run(main())


def test_good_bye_frees_the_place_and_holds_nobody_up() -> None:
    async def main() -> None:
        async with fake_swarm() as swarm:
            first = await swarm.closes(0)
            assert first.entry_of(MINERS[1]) is not None
            swarm.miners.pop(MINERS[1]).cancel()
            await swarm.post(MINERS[1], "/v1/goodbye", registration())
            second = await swarm.closes(1)
            assert MINERS[1] not in second.members
            assert second.closed is not None
            assert second.closed.committed

    run(main())
