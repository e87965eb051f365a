"""Faults of the development chain, as a client of its socket sees them: late, cut off, not final, replaced, refused."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import bittensor as bt
import pytest
from bittensor.keyfiles import Keypair
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from subnet.localnet.devchain import rpc
from subnet.localnet.devchain.chain import DevChain
from subnet.localnet.devchain.faults import Faults
from subnet.localnet.devchain.rpc import Server
from tests.contract.devchain_client import WITHIN_S, Client, Refusal, client_of, stepped, watched
from tests.unit.devchain_actors import BOB, DAVE

# Finality


def test_without_faults_a_block_is_final_at_once_and_heads_begin_with_the_present_one() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        await client.ask("devchain_produce", 3)
        for kind in ("New", "Finalized"):
            heads = await client.ask(f"chain_subscribe{kind}Heads")
            assert (await client.hear(heads))["number"] == hex(chain.head.number)
            block_hash = await client.ask("devchain_produce")
            assert (await client.hear(heads))["number"] == hex(chain.head.number)
            assert await client.ask("chain_getFinalizedHead") == await client.ask("chain_getHead") == block_hash
            assert await client.ask(f"chain_unsubscribe{kind}Heads", heads)

    stepped(story)


def test_finality_stays_behind_and_catches_up_in_order() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        final = await client.ask("devchain_produce")
        new, finalized = [await client.heads(kind) for kind in ("New", "Finalized")]
        await client.ask("devchain_fault", "unfinalised", True)
        watches, blocks = [], []
        for _ in range(3):
            watches.append(await watched(chain, client))
            blocks.append(await client.ask("devchain_produce"))
            assert (await client.hear(new))["number"] == hex(chain.head.number)
            assert await client.hear(watches[-1]) == {"inBlock": blocks[-1]}
            assert await client.ask("chain_getFinalizedHead") == final
            assert await client.ask("chain_getHead") == blocks[-1]
        assert all(client.is_silent(each) for each in (finalized, *watches))
        assert await client.ask("devchain_fault", "unfinalised") is True
        assert [int((await client.hear(finalized))["number"], 16) for _ in blocks] == [2, 3, 4]
        assert [await client.hear(each) for each in watches] == [{"finalized": each} for each in blocks]
        assert await client.ask("chain_getFinalizedHead") == blocks[-1]

    stepped(story)


def test_a_switch_that_a_test_clears_directly_counts_from_the_next_block() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        finalized = await client.heads("Finalized")
        server.faults.unfinalised = True
        await client.ask("devchain_produce", 2)
        server.faults.unfinalised = False
        assert client.is_silent(finalized)
        await client.ask("devchain_produce")
        assert [int((await client.hear(finalized))["number"], 16) for _ in range(3)] == [1, 2, 3]

    stepped(story)


def test_finality_is_at_most_the_history_behind() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        await client.ask("devchain_fault", "unfinalised", True)
        watch = await watched(chain, client)
        await client.ask("devchain_produce", 30)
        assert chain.final.number == 30 - 8 + 1
        assert len(chain.finality.open) == 7
        assert [next(iter(await client.hear(watch))) for _ in range(2)] == ["inBlock", "finalized"]
        assert await client.ask("chain_getHeader", await client.ask("chain_getFinalizedHead"))

    stepped(story, history=8)


# A block that is replaced


def test_a_replaced_block_gives_its_transactions_back() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        parent = await client.ask("devchain_produce")
        await client.ask("devchain_fault", "unfinalised", True)
        new = await client.heads("New")
        watch = await watched(chain, client)
        old = await client.ask("devchain_produce")
        before = {key: chain.state.raw(key) for key in chain.state.raw_keys(b"")}
        late = await watched(chain, client)
        replacing = await client.ask("devchain_reorg")
        assert [await client.hear(watch) for _ in range(3)] == [
            {"inBlock": old},
            {"retracted": old},
            {"inBlock": replacing},
        ]
        assert await client.hear(late) == {"inBlock": replacing}
        assert [(await client.hear(new))["number"] for _ in range(2)] == ["0x2", "0x2"]
        assert replacing not in (old, parent)
        assert (await client.ask("chain_getHeader"))["parentHash"] == parent
        assert await client.ask("chain_getHeader", old) is None
        with pytest.raises(Refusal, match="4003"):
            await client.ask("state_getStorage", "0x00", old)
        assert chain.nonce(BOB.address) == 2
        assert chain.state.raw_keys(b"") == sorted(before)
        await client.ask("devchain_fault", "unfinalised", False)
        assert await client.hear(watch) == {"finalized": replacing}

    stepped(story)


def test_what_a_replaced_block_did_is_undone() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        await client.ask("devchain_produce")
        before = {key: chain.state.raw(key) for key in chain.state.raw_keys(b"")}
        await client.ask("devchain_fault", "unfinalised", True)
        watch = await watched(chain, client)
        old = await client.ask("devchain_produce")
        await client.ask("devchain_fault", "no_inclusion", True)
        await client.ask("devchain_reorg")
        assert [await client.hear(watch) for _ in range(2)] == [{"inBlock": old}, {"retracted": old}]
        changed = {key for key in chain.state.raw_keys(b"") if chain.state.raw(key) != before.get(key)}
        shield = {key for key in changed if key.startswith(SHIELD)}  # every block announces keys
        assert changed - shield == {chain.state.codec.key(*item, ()) for item in NUMBER_AND_TIME}
        assert [len(chain.blocks), len(chain.numbers), len(chain.pool.waiting)] == [3, 3, 1]
        await client.ask("devchain_fault", "no_inclusion", False)
        block = await client.ask("devchain_produce")
        assert await client.hear(watch) == {"inBlock": block}

    stepped(story)


SHIELD = bytes.fromhex("9e94fc9ecf3c8d51c7baba39080fb433")  # twox128 of the pallet's name
NUMBER_AND_TIME = (("System", "Number"), ("Timestamp", "Now"))


def test_a_final_block_is_not_replaced() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        for _ in range(2):  # genesis, too
            with pytest.raises(Refusal, match=r"4003 .*unfinalised"):
                await client.ask("devchain_reorg")
            await client.ask("devchain_produce")
        await client.ask("devchain_fault", "unfinalised", True)
        await client.ask("devchain_produce")
        first, second = await client.ask("devchain_reorg"), await client.ask("devchain_reorg")
        assert first != second
        assert chain.head.number == 3
        await client.ask("devchain_fault", "unfinalised", False)
        with pytest.raises(Refusal, match="block 3 is final"):
            await client.ask("devchain_reorg")

    stepped(story)


def test_the_sdk_is_told_that_its_transaction_was_retracted() -> None:
    """It gives up on a retracted transaction; a client of ours has to ask the chain what became of it."""

    async def story(chain: DevChain, server: Server, client: Client) -> None:
        await client.ask("devchain_fault", "unfinalised", True)
        call = bt.calls.Balances.transfer_keep_alive(dest=DAVE.address, value=1000)
        wallet = bt_wallet()

        def submit() -> Any:
            with bt.Subtensor(server.url) as subtensor:
                return subtensor.submit_call(call, wallet, wait_for_finalization=True)

        submitting = asyncio.create_task(asyncio.to_thread(submit))
        while not chain.pool.waiting:
            await asyncio.wait({submitting}, timeout=0.01)
            assert not submitting.done(), submitting.result()
        await client.ask("devchain_produce")
        await client.ask("devchain_reorg")
        outcome = await asyncio.wait_for(asyncio.gather(submitting, return_exceptions=True), WITHIN_S)
        assert "retracted" in str(outcome[0]).lower()
        assert chain.nonce(BOB.address) == 1

    stepped(story)


def bt_wallet() -> Any:
    pair = Keypair.create_from_uri("//Bob")
    return SimpleNamespace(coldkey=pair, coldkeypub=Keypair(ss58_address=pair.ss58_address), hotkey=pair)


# Blocks without transactions, late answers, closed connections


def test_blocks_without_inclusion_leave_the_pool_alone() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        await client.ask("devchain_fault", "no_inclusion", True)
        watch = await watched(chain, client)
        await client.ask("devchain_produce", 3)
        assert client.is_silent(watch)
        assert await client.ask("system_accountNextIndex", BOB.address) == 1
        await client.ask("devchain_fault", "no_inclusion", False)
        block = await client.ask("devchain_produce")
        assert [await client.hear(watch) for _ in range(2)] == [{"inBlock": block}, {"finalized": block}]

    stepped(story)


def test_a_lag_delays_everything_in_order_and_blocks_nobody() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        loop = asyncio.get_running_loop()
        heads = await client.heads("New")
        client.order.clear()
        assert await client.ask("devchain_fault", "lag_s", 0.3) == 0.0
        began = loop.time()
        chain.produce()
        asked = [asyncio.create_task(client.ask("chain_getHead")) for _ in range(5)]
        async with client_of(server) as other:
            await other.ask("devchain_produce")
            assert 0.3 <= loop.time() - began < 1.2  # in parallel, not one lag after the other
        await asyncio.gather(*asked)
        assert [(await client.hear(heads))["number"] for _ in range(2)] == ["0x1", "0x2"]
        assert client.order == ["answer", "notification", *["answer"] * 5, "notification"]
        await client.ask("devchain_fault", "lag_s")
        began = loop.time()
        await client.ask("chain_getHead")
        assert loop.time() - began < 0.3

    stepped(story)


@pytest.mark.parametrize("code", [1000, 1001, 1006, 1012])
def test_connections_close_with_the_code_that_is_asked_for(code: int) -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        async with connect(server.url) as victim, connect(server.url) as another:
            assert await client.ask("devchain_close", code) == 2
            for socket in (victim, another):
                with pytest.raises(ConnectionClosed):
                    await asyncio.wait_for(socket.recv(), WITHIN_S)
                assert socket.close_code == code
        assert await client.ask("system_chain") == "Bittensor"  # who asks stays

    stepped(story)


def test_requests_of_our_own_are_checked() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        for method, *params in (
            ("devchain_close", 999),
            ("devchain_close", "x"),
            ("devchain_produce", 0),
            ("devchain_produce", 10**9),
            ("devchain_produce", True),
            ("devchain_produce", "3"),
            ("devchain_fault", "silent", "false"),
            ("devchain_fault", "lag_s", -1),
            ("devchain_fault", "lag_s", True),
            ("devchain_fault", "pool_rejection", 6),
            ("devchain_fault", "typo", True),
        ):
            with pytest.raises(Refusal, match="-32602"):
                await client.ask(method, *params)
        assert chain.head.number == 0
        assert vars(server.faults) == vars(Faults())

    stepped(story)


def test_block_hashes_by_number_text_and_list() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        newest = await client.ask("devchain_produce", 20)
        assert await client.ask("chain_getBlockHash") == newest
        assert await client.ask("chain_getHead", 16) == await client.ask("chain_getBlockHash", "0x10")
        assert await client.ask("chain_getBlockHash", [0, "0x14", 21]) == [chain.hash_at(0), newest, None]

    stepped(story)


# What a client leaves behind


def test_a_connection_keeps_nothing_of_settled_transactions() -> None:
    async def story(chain: DevChain, server: Server, client: Client) -> None:
        for _ in range(5):
            watch = await watched(chain, client)
            await client.ask("devchain_produce")
            assert [next(iter(await client.hear(watch))) for _ in range(2)] == ["inBlock", "finalized"]
        (connection,) = server.connections
        assert connection.topics == {}

    stepped(story)


def test_subscriptions_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_SUBSCRIPTIONS", 3)

    async def story(chain: DevChain, server: Server, client: Client) -> None:
        for _ in range(3):
            await client.ask("chain_subscribeNewHeads")
        with pytest.raises(Refusal, match="Too many subscriptions"):
            await client.ask("chain_subscribeNewHeads")

    stepped(story)


def test_a_client_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_QUEUED_BYTES", 100_000)

    async def story(chain: DevChain, server: Server, client: Client) -> None:
        async with connect(server.url, max_queue=1) as greedy:
            with pytest.raises(ConnectionClosed):  # noqa: PT012 - which of the two sees it depends on buffers
                for number in range(1000):
                    request = {"jsonrpc": "2.0", "id": number, "method": "state_getMetadata", "params": []}
                    await asyncio.wait_for(greedy.send(json.dumps(request)), WITHIN_S)
                await asyncio.wait_for(greedy.wait_closed(), WITHIN_S)
                await greedy.send("")
        while len(server.connections) > 1:
            await client.ask("system_chain")
        assert len(chain.listeners) == len(chain.finality_listeners) == 1

    stepped(story)
