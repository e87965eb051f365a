"""The JSON-RPC methods that the clients use, as functions of the chain; no sockets.

Unknown methods, unknown blocks and refused transactions raise RpcError with substrate's codes. `devchain_` methods
are our own: they step the chain and switch faults from another process.

Source: the calls counted from bittensor 11.3 and substrate-interface 1.8; error codes of substrate's RPC servers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from subnet.errors import ConfigError
from subnet.localnet.devchain import runtime_api
from subnet.localnet.devchain.blocks import Block
from subnet.localnet.devchain.chain import AlreadyFinal, DevChain
from subnet.localnet.devchain.extrinsics import MAX_EXTRINSIC_BYTES, InvalidTransaction
from subnet.localnet.devchain.scale import octets
from subnet.localnet.devchain.state import View

MAX_STEPS = 1000  # blocks that one request makes, while nobody else is served
MAX_PAGE_KEYS = 1000  # substrate's limit for state_getKeysPaged
NO_ROOT = "0x" + "00" * 32

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
SERVER_ERROR = 4003  # substrate's "Client error" of the state module


class RpcError(Exception):
    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Session(Protocol):
    """One connection, as methods see it."""

    def subscribe(self, topic: str) -> str: ...

    def unsubscribe(self, subscription: str) -> bool: ...

    def notifier(self, subscription: str, method: str) -> Callable[[Any], None]: ...

    def later(self, action: Callable[[], None]) -> None:
        """Runs it once the answer to the present request is on its way."""


def header(block: Block) -> dict[str, Any]:
    return {
        "parentHash": block.parent,
        "number": hex(block.number),
        "stateRoot": NO_ROOT,
        "extrinsicsRoot": NO_ROOT,
        "digest": {"logs": []},
    }


def hex_bytes(text: Any) -> bytes:
    if not isinstance(text, str):
        raise RpcError(INVALID_PARAMS, "Invalid params: expected a hex string")
    try:
        return bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, "Invalid params: expected a hex string") from error


def hex_or_none(raw: bytes | None) -> str | None:
    return None if raw is None else "0x" + raw.hex()


class Methods:
    """Answers requests; `call` is the only entry."""

    def __init__(self, chain: DevChain) -> None:
        self.chain = chain
        self.faults = chain.faults
        self.table: dict[str, Callable[..., Any]] = {
            "chain_getHead": self.block_hash,  # another name of chain_getBlockHash, as in substrate
            "chain_getFinalizedHead": lambda: chain.final.hash,
            "chain_getFinalisedHead": lambda: chain.final.hash,
            "chain_getBlockHash": self.block_hash,
            "chain_getHeader": self.block_header,
            "chain_getBlock": self.block,
            "state_getRuntimeVersion": self.runtime_version,
            "state_getMetadata": lambda at=None: hex_or_none(chain.metadata[14]),
            "state_call": self.state_call,
            "state_getStorage": self.storage,
            "state_getStorageAt": self.storage,
            "state_queryStorageAt": self.query_storage,
            "state_getKeysPaged": self.keys_paged,
            "account_nextIndex": chain.next_nonce,
            "system_accountNextIndex": chain.next_nonce,
            "system_chain": lambda: "Bittensor",
            "system_name": lambda: "liquid-devchain",
            "system_properties": lambda: {"ss58Format": 42, "tokenDecimals": 9, "tokenSymbol": "TAO"},
            "system_health": lambda: {"peers": 0, "isSyncing": False, "shouldHavePeers": False},
            "author_submitExtrinsic": self.submit,
            "devchain_produce": self.produce,
            "devchain_fault": self.fault,
            "devchain_reorg": self.reorg,
            "rpc_methods": lambda: {"methods": sorted({*self.table, *self.session_table})},
        }
        self.session_table: dict[str, Callable[..., Any]] = {
            "author_submitAndWatchExtrinsic": self.submit_and_watch,
            "author_unwatchExtrinsic": self.unsubscribe,
            "chain_subscribeNewHeads": lambda session: self.subscribe(session, "chain_newHead"),
            "chain_subscribeFinalizedHeads": lambda session: self.subscribe(session, "chain_finalizedHead"),
            "chain_unsubscribeNewHeads": self.unsubscribe,
            "chain_unsubscribeFinalizedHeads": self.unsubscribe,
        }

    def call(self, method: str, params: list[Any], session: Session) -> Any:
        """Raises RpcError."""
        while params and params[-1] is None:
            params = params[:-1]
        try:
            if method in self.session_table:
                return self.session_table[method](session, *params)
            if method in self.table:
                return self.table[method](*params)
        except InvalidTransaction as refused:
            raise RpcError(refused.code, refused.message, refused.data) from refused
        except ConfigError as error:  # the state file cannot be written
            raise RpcError(INTERNAL_ERROR, str(error)) from error
        except (TypeError, ValueError) as error:
            raise RpcError(INVALID_PARAMS, f"Invalid params for {method}") from error
        raise RpcError(METHOD_NOT_FOUND, "Method not found")

    # Blocks

    def block_hash(self, number: int | str | list[Any] | None = None) -> Any:
        """The newest block's without a number; a number may come as hexadecimal text, several as a list."""
        if number is None:
            return self.chain.head.hash
        if isinstance(number, list):
            return [self.block_hash(each) for each in number]
        return self.chain.hash_at(int(number, 16) if isinstance(number, str) else number)

    def block_header(self, at: str | None = None) -> dict[str, Any] | None:
        block = self.chain.block_at(at)
        return None if block is None else header(block)

    def block(self, at: str | None = None) -> dict[str, Any] | None:
        block = self.chain.block_at(at)
        if block is None:
            return None
        extrinsics = ["0x" + raw.hex() for raw in block.extrinsics]
        return {"block": {"header": header(block), "extrinsics": extrinsics}, "justifications": None}

    def runtime_version(self, at: str | None = None) -> dict[str, Any]:
        return {
            "specName": "node-subtensor",
            "implName": "liquid-devchain",
            "specVersion": self.chain.config.spec_version,
            "implVersion": 1,
            "transactionVersion": 1,
            "authoringVersion": 1,
            "stateVersion": 1,
            "apis": [],
        }

    # State

    def view(self, at: str | None) -> View:
        view = self.chain.view_at(at)
        if view is None:
            raise RpcError(SERVER_ERROR, f"Client error: UnknownBlock: State already discarded for {at}")
        return view

    def storage(self, key: str, at: str | None = None) -> str | None:
        return hex_or_none(self.view(at).raw(hex_bytes(key)))

    def query_storage(self, keys: list[str], at: str | None = None) -> list[dict[str, Any]]:
        view = self.view(at)
        changes = [[key, hex_or_none(view.raw(hex_bytes(key)))] for key in keys]
        return [{"block": at or self.chain.head.hash, "changes": changes}]

    def keys_paged(self, prefix: str, count: int, start: str | None = None, at: str | None = None) -> list[str]:
        if count > MAX_PAGE_KEYS:
            raise RpcError(SERVER_ERROR, f"count exceeds maximum value. value: {count}, max: {MAX_PAGE_KEYS}")
        after = b"" if start is None else hex_bytes(start)
        keys = [key for key in self.view(at).raw_keys(hex_bytes(prefix)) if key > after]
        return ["0x" + key.hex() for key in keys[:count]]

    def state_call(self, name: str, data: str, at: str | None = None) -> str:
        argument = hex_bytes(data)
        if name == "Metadata_metadata_at_version":
            blob = self.chain.metadata.get(int.from_bytes(argument, "little"))
            return "0x" + (b"\0" if blob is None else b"\1" + octets(blob)).hex()
        if name == "TransactionPaymentApi_query_info":
            return "0x" + self.fee_info().hex()
        api, _, method = name.partition("_")
        if (api, method) not in runtime_api.METHODS:
            raise RpcError(SERVER_ERROR, f"Client error: Execution failed: Exported method {name} is not found")
        return "0x" + runtime_api.answer(self.view(at), api, method, argument).hex()

    def fee_info(self) -> bytes:
        runtime = self.chain.runtime
        declared = runtime.runtime_api_map()["TransactionPaymentApi"]["query_info"]
        weight = {"ref_time": 1000, "proof_size": 100}
        info = {"weight": weight, "class": "Normal", "partial_fee": self.chain.config.fee_rao}
        return bytes(runtime.encode(declared["output"], info))

    # Transactions and subscriptions

    def submitted(self, text: str, watcher: Callable[[Any], None] | None) -> str:
        if self.faults.pool_rejection is not None:
            raise InvalidTransaction(self.faults.pool_rejection)
        raw = hex_bytes(text)
        if len(raw) > MAX_EXTRINSIC_BYTES:
            raise InvalidTransaction("Transaction would exhaust the block limits")
        return self.chain.submit(raw, watcher)

    def submit(self, text: str) -> str:
        return self.submitted(text, None)

    def submit_and_watch(self, session: Session, text: str) -> str:
        subscription = session.subscribe("author_extrinsicUpdate")
        notify = session.notifier(subscription, "author_extrinsicUpdate")

        def watcher(status: Any) -> None:
            notify(status)
            if status == "invalid" or (isinstance(status, dict) and "finalized" in status):  # nothing follows
                session.unsubscribe(subscription)

        try:
            self.submitted(text, watcher)
        except (InvalidTransaction, RpcError):
            session.unsubscribe(subscription)
            raise
        return subscription

    def subscribe(self, session: Session, topic: str) -> str:
        """The present head is the first notification."""
        subscription = session.subscribe(topic)
        block = self.chain.head if topic == "chain_newHead" else self.chain.final
        session.later(lambda: session.notifier(subscription, topic)(header(block)))
        return subscription

    def unsubscribe(self, session: Session, subscription: str) -> bool:
        return session.unsubscribe(subscription)

    # Our own

    def produce(self, count: int = 1) -> str:
        if type(count) is not int or not 1 <= count <= MAX_STEPS:  # a boolean is not a number here
            raise RpcError(INVALID_PARAMS, f"Invalid params: 1 to {MAX_STEPS} blocks")
        for _ in range(count):
            self.chain.produce()
        return self.chain.head.hash

    def reorg(self) -> str:
        """Replaces the newest block; returns the new one's hash."""
        try:
            return self.chain.reorg().hash
        except AlreadyFinal as error:
            raise RpcError(SERVER_ERROR, f"Client error: {error}; first set the switch `unfinalised`") from error

    def fault(self, name: str, value: Any = None) -> Any:
        """Sets a switch of `Faults`; returns what it was."""
        try:
            before = self.faults.switch(name, value)
        except ValueError as error:
            raise RpcError(INVALID_PARAMS, f"Invalid params: {error}") from error
        self.chain.finalise()
        return before
