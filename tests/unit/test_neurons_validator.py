"""A validator without a permit waits for one, and says so once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from neurons.base import Neuron
from neurons.settings import NeuronConfig
from neurons.validator import _register
from subnet.clock import WallClock, run_virtual
from subnet.errors import Forbidden
from subnet.log import Event
from subnet.net.auth import dev_signer
from subnet.net.base import PeerAddress, Request, Response
from subnet.net.memory import MemoryNetwork
from subnet.train.device import CPU
from subnet.verify.auditor import AuditSite
from tests.tiny import text_corpus, tiny_run
from tests.unit.heard_events import hearing

OWNER, VALIDATOR = dev_signer("//owner"), dev_signer("//validator-1")
NUM_REFUSALS = 3


def test_a_validator_without_a_permit_asks_until_it_has_one() -> None:
    asked: list[str] = []

    async def owner(request: Request) -> Response:
        asked.append(request.path)
        if len(asked) <= NUM_REFUSALS:
            raise Forbidden("This hotkey is not admitted as a validator.")
        return Response(200, b"{}")

    async def no_block(number: int) -> str:
        raise AssertionError("nothing is audited")

    async def nobody(request: Request) -> Response:
        raise AssertionError("validators serve nothing")

    async def main() -> None:
        network = MemoryNetwork()
        network.attach(OWNER.hotkey, owner)
        peers = network.attach(VALIDATOR.hotkey, nobody)
        me = Neuron(NeuronConfig(), VALIDATOR, None, peers, WallClock())
        corpus, owner_at = text_corpus(), PeerAddress(OWNER.hotkey, "memory://owner")
        with ThreadPoolExecutor(1) as executor:
            await _register(
                me, AuditSite(tiny_run(corpus), VALIDATOR.hotkey, owner_at, peers, corpus, executor, no_block, CPU, 1.0)
            )

    with hearing() as heard:
        run_virtual(main())
    assert asked == ["/v1/register"] * (NUM_REFUSALS + 1)
    assert heard == [Event.REQUEST_REFUSED]
