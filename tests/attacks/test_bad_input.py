"""Attack: requests that are malformed, oversized, unsigned, replayed, misdirected, stale, tampered with or poisoned.

Each must end in an error with a clear code, before the handler where it is about the request, with nothing changed, and
with none of the stranger's bytes in the answer.
"""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest
import torch
from bittensor.keyfiles import Keypair

from subnet.clock import WallClock
from subnet.codec.tensors import TensorSpec, max_body_bytes, pack, tensors_digest
from subnet.errors import Malformed, NotFinite, TooLarge
from subnet.net.auth import Signer, dev_signer
from subnet.net.base import ANONYMOUS, Request, Response, reply
from subnet.net.messages import Envelope, Heartbeat, pack_body, unpack_body
from subnet.net.quota import Quotas
from subnet.records import PROTOCOL, decode
from subnet.types import Digest, MicrobatchId, RoundId, StageId
from tests.attacks.wire import CAP_BYTES, MARK, Victim, code_of, exchange, read_answer, request_bytes, signed


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(main())


def refused(data: bytes, status: int, code: str) -> None:
    """``data`` on a fresh connection is refused with ``code``, and no handler runs."""

    async def scenario() -> None:
        victim = Victim()
        async with victim.up() as port:
            got, answer = await exchange(port, data)
        assert (got, code_of(answer)) == (status, code)
        assert MARK.encode() not in answer
        assert victim.seen == []
        assert victim.served is not None
        assert victim.served.num_failed == 0

    play(scenario)


class ShiftedClock:
    def __init__(self, shift_s: float) -> None:
        self._shift_s = shift_s
        self._clock = WallClock()

    def now_s(self) -> float:
        return self._clock.now_s() + self._shift_s


def test_the_unspoilt_request_passes_and_its_replay_does_not() -> None:
    async def scenario() -> None:
        victim = Victim()
        headers, body = signed()
        data = request_bytes("POST", "/v1/forward?shard=1", headers, body)
        async with victim.up() as port:
            assert (await exchange(port, data))[0] == 200
            status, answer = await exchange(port, data)
        assert (status, code_of(answer)) == (401, "unauthorized")
        assert len(victim.seen) == 1

    play(scenario)


def test_unsigned() -> None:
    refused(request_bytes("POST", "/v1/forward", {"Content-Length": "8"}, MARK.encode()), 401, "unauthorized")
    refused(request_bytes("POST", "/v1/status", {"Content-Length": "2"}, b"{}"), 401, "unauthorized")
    refused(request_bytes("GET", "/v1/me", {}), 401, "unauthorized")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("X-Bittensor-Signature", "0x" + "00" * 64),
        ("X-Bittensor-Signature", MARK),
        ("X-Bittensor-Signature", ""),
        ("X-Bittensor-Nonce", MARK),
        ("X-Bittensor-Nonce", "9" * 5000),
        ("X-Bittensor-Hotkey", MARK),
        ("X-Bittensor-Hotkey", dev_signer("//another").hotkey),
        ("X-Bittensor-Receiver", dev_signer("//another").hotkey),
        ("X-Bittensor-Version", MARK),
        ("X-Bittensor-Crypto", MARK),
        ("X-Bittensor-Crypto", "ed25519"),
    ],
)
def test_spoilt_signature_headers(name: str, value: str) -> None:
    headers, body = signed()
    refused(request_bytes("POST", "/v1/forward?shard=1", {**headers, name: value}, body), 401, "unauthorized")


def test_a_signature_of_another_scheme() -> None:
    headers, body = signed(signer=Signer(Keypair.create_from_uri("//attacker", crypto_type=0)))
    assert headers["X-Bittensor-Crypto"] == "ed25519"
    refused(request_bytes("POST", "/v1/forward?shard=1", headers, body), 401, "unauthorized")


def test_made_for_another_receiver() -> None:
    headers, body = signed(receiver=dev_signer("//another").hotkey)
    refused(request_bytes("POST", "/v1/forward?shard=1", headers, body), 401, "unauthorized")


@pytest.mark.parametrize("shift_s", [-10.5, 2.5])
def test_stale_or_from_the_future(shift_s: float) -> None:
    headers, body = signed(signer=Signer(Keypair.create_from_uri("//attacker"), ShiftedClock(shift_s)))
    refused(request_bytes("POST", "/v1/forward?shard=1", headers, body), 401, "unauthorized")


def test_tampered_query_path_method_and_body() -> None:
    headers, body = signed()
    for method, target, sent in [
        ("POST", "/v1/forward?shard=2", body),
        ("POST", "/v1/forward", body),
        ("POST", "/v1/backward?shard=1", body),
        ("PUT", "/v1/forward?shard=1", body),
        ("POST", "/v1/forward?shard=1", b"BODY"),
    ]:
        refused(request_bytes(method, target, headers, sent), 401, "unauthorized")


@pytest.mark.parametrize(
    "target",
    [
        "/v1/forward?" + "&".join(f"{MARK}{i}=1" for i in range(40)),
        "/v1/forward?a=1&a=2",
        f"/v1/forward?{MARK}",
        "/v1/%66orward",
        f"/v1/{MARK}%0d%0aX-Evil:1",
        "/v1/" + MARK * 300,
    ],
)
def test_malformed_targets_even_when_signed(target: str) -> None:
    headers, body = signed(target=target)
    refused(request_bytes("POST", target, headers, body), 422, "malformed")


def test_too_large_is_refused_before_a_byte_of_it_is_sent() -> None:
    headers, _ = signed()
    refused(request_bytes("POST", "/v1/forward?shard=1", {**headers, "Content-Length": str(10**12)}), 413, "too_large")


def test_too_large_is_never_read_into_memory() -> None:
    async def scenario() -> None:
        victim, size, chunk = Victim(), 64 * 1024 * 1024, bytes(256 * 1024)
        headers, _ = signed()
        data = request_bytes("POST", "/v1/forward?shard=1", {**headers, "Content-Length": str(size)})
        async with victim.up() as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            tracemalloc.start()
            try:
                writer.write(data)
                for _ in range(size // len(chunk)):
                    writer.write(chunk)
                    await writer.drain()
                status, _ = await read_answer(reader)
                _, peak_bytes = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
                writer.close()
        assert status == 413
        assert victim.seen == []
        assert peak_bytes < 4 * 1024 * 1024  # both ends' buffers; the body has sixteen times that

    play(scenario)


def test_a_body_without_its_length() -> None:
    headers, _ = signed()
    del headers["Content-Length"]
    chunked = request_bytes(
        "POST", "/v1/forward?shard=1", {**headers, "Transfer-Encoding": "chunked"}, b"4\r\nbody\r\n0\r\n\r\n"
    )
    refused(chunked, 422, "malformed")


def test_a_packed_body_is_not_unpacked() -> None:
    async def scenario() -> None:
        victim = Victim()
        headers, body = signed(b"\x1f\x8b\x08 not really gzip")
        async with victim.up() as port:
            data = request_bytes("POST", "/v1/forward?shard=1", {**headers, "Content-Encoding": "gzip"}, body)
            assert (await exchange(port, data))[0] == 200
        assert victim.seen[0].body == body

    play(scenario)


@pytest.mark.parametrize(
    "data",
    [
        f"POST /v1/forward HTTP/1.1\r\nHost: x\r\nContent-Length: {MARK}\r\n\r\n".encode(),
        f"{MARK} /v1/forward HTTP/9.9\r\n\r\n".encode(),
        f"GET /v1/me HTTP/1.1\r\n{MARK}\r\n\r\n".encode(),
        f"GET /v1/me HTTP/1.1\r\nHost: x\r\nX: {MARK}".encode() + b"x" * 20_000 + b"\r\n\r\n",
    ],
)
def test_what_is_not_http_is_answered_without_an_echo(data: bytes) -> None:
    async def scenario() -> None:
        victim = Victim()
        async with victim.up() as port:
            status, answer = await exchange(port, data)
        assert status == 400
        assert MARK.encode() not in answer
        assert victim.seen == []

    play(scenario)


def test_a_body_that_comes_too_slowly_or_breaks_off() -> None:
    async def scenario() -> None:
        victim = Victim()
        headers, body = signed(b"x" * 1000)
        data = request_bytes("POST", "/v1/forward?shard=1", headers, body[:10])
        async with victim.up(read_timeout_s=0.05) as port:
            status, answer = await exchange(port, data)
            assert (status, code_of(answer)) == (504, "deadline")
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.close()
            await writer.wait_closed()
            again, whole = signed()
            assert (await exchange(port, request_bytes("POST", "/v1/forward?shard=1", again, whole)))[0] == 200
        assert [request.body for request in victim.seen] == [whole]
        assert victim.served is not None
        assert victim.served.num_failed == 0

    play(scenario)


def test_public_paths_take_unsigned_gets_only() -> None:
    async def scenario() -> None:
        victim = Victim()
        async with victim.up() as port:
            assert (await exchange(port, request_bytes("GET", "/v1/ledger?after=-1", {})))[0] == 200
        (request,) = victim.seen
        assert (request.sender, request.auth, request.query) == (ANONYMOUS, None, {"after": "-1"})

    play(scenario)


def test_a_fault_of_ours_shows_nothing_of_itself() -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError(MARK + request.body.decode())

    async def scenario() -> None:
        victim = Victim(act=fail)
        headers, body = signed(MARK.encode())
        async with victim.up() as port:
            status, answer = await exchange(port, request_bytes("POST", "/v1/forward?shard=1", headers, body))
        assert (status, code_of(answer)) == (500, "error")
        assert MARK.encode() not in answer
        assert victim.served is not None
        assert victim.served.num_failed == 1

    play(scenario)


def test_one_sender_over_quota_does_not_stop_another() -> None:
    async def scenario() -> None:
        victim = Victim()
        async with victim.up(quotas=Quotas(requests_per_s=0.001, burst_requests=2)) as port:
            statuses = []
            for uri in ("//flood", "//flood", "//flood", "//honest"):
                headers, body = signed(signer=dev_signer(uri))
                data = request_bytes("POST", "/v1/forward?shard=1", headers, body)
                statuses.append((await exchange(port, data))[0])
        assert statuses == [200, 200, 503, 200]

    play(scenario)


SPECS = {"hidden": TensorSpec("F32", (2, 3))}
GOOD = {"hidden": torch.arange(6, dtype=torch.float32).reshape(2, 3)}


def envelope(digest: Digest, protocol: int = PROTOCOL) -> Envelope:
    return Envelope(
        protocol=protocol,
        run_hash=Digest("ab" * 32),
        round=RoundId(0),
        microbatch=MicrobatchId(5),
        attempt=0,
        stage=StageId(1),
        version=0,
        path=(),
        digest=digest,
    )


def body_of(tensors: dict[str, torch.Tensor], protocol: int = PROTOCOL) -> bytes:
    return pack_body(envelope(tensors_digest(tensors), protocol), tensors)


POISONED = {
    "nan": (body_of({"hidden": torch.full((2, 3), float("nan"))}), NotFinite),
    "infinity": (body_of({"hidden": torch.full((2, 3), float("inf"))}), NotFinite),
    "wrong shape": (body_of({"hidden": torch.zeros(3, 2)}), Malformed),
    "wrong dtype": (body_of({"hidden": torch.zeros(2, 3, dtype=torch.int32)}), Malformed),
    "missing tensor": (body_of({}), Malformed),
    "unknown tensor": (body_of({**GOOD, MARK: torch.zeros(1)}), Malformed),
    "wrong digest": (pack_body(envelope(Digest("00" * 32)), GOOD), Malformed),
    "wrong protocol": (body_of(GOOD, PROTOCOL + 1), Malformed),
    "no envelope": (pack(GOOD), Malformed),
    "spoilt envelope": (pack(GOOD, {"envelope": f'{{"{MARK}": 1}}'}), Malformed),
    "more than an envelope": (pack(GOOD, {"envelope": "{}", MARK: ""}), Malformed),
    "truncated": (body_of(GOOD)[:-1], Malformed),
    "trailing byte": (body_of(GOOD) + b"x", Malformed),
    "pickle": (b"\x80\x04cos\nsystem\n(V" + MARK.encode() + b"\ntR.", Malformed),
    "empty": (b"", Malformed),
    "over the cap": (bytes(max_body_bytes(SPECS) + 1), TooLarge),
}


@pytest.mark.parametrize("name", POISONED)
def test_poisoned_tensor_bodies(name: str) -> None:
    body, kind = POISONED[name]
    applied: list[Envelope] = []

    async def apply(request: Request) -> Response:
        seen, _ = unpack_body(request.body, SPECS, max_bytes=max_body_bytes(SPECS))
        applied.append(seen)
        return reply(b"")

    async def scenario() -> None:
        victim = Victim(act=apply)
        async with victim.up() as port:
            headers, _ = signed(body)
            status, answer = await exchange(port, request_bytes("POST", "/v1/forward?shard=1", headers, body))
            assert (status, code_of(answer)) == (kind.status, kind.code)
            assert MARK.encode() not in answer
            assert applied == []
            headers, whole = signed(body_of(GOOD))
            assert (await exchange(port, request_bytes("POST", "/v1/forward?shard=1", headers, whole)))[0] == 200
        assert len(applied) == 1

    assert len(body) <= CAP_BYTES
    play(scenario)


@pytest.mark.parametrize(
    "change",
    [
        {MARK: 1},
        {"loss": "NaN"},
        {"held": MARK},
        {"held": 1.5},
        {"phase": MARK},
        {"effort": {"round": 0, "busy_s": "Infinity", "num_forwards": 3}},
        {"effort": {"round": 0, "busy_s": 1.5, "num_forwards": 3, MARK: 1}},
    ],
)
def test_spoilt_records_are_named_by_field_and_not_by_value(change: dict[str, object]) -> None:
    plain: dict[str, object] = {
        "round": 1,
        "phase": "training",
        "is_drained": False,
        "held": 0,
        "applied": 0,
        "queue": 0,
        "tokens_per_s": 1.0,
        "loss": None,
        "wire_bytes": 0,
        "wire_tokens": 0,
        "staleness_max": 0,
        "effort": {"round": 0, "busy_s": 1.5, "num_forwards": 3},
    }
    assert decode(Heartbeat, Heartbeat.from_plain(plain).encoded()).round == 1
    with pytest.raises(Malformed) as caught:
        Heartbeat.from_plain({**plain, **change})
    assert MARK not in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"{", b"\xff", b'{"loss": NaN}', b"[" * 100_000])
def test_bodies_that_are_no_record(body: bytes) -> None:
    with pytest.raises(Malformed):
        decode(Heartbeat, body)
