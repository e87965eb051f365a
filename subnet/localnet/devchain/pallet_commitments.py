"""On-chain commitments of neurons: one small record per hotkey and subnet, replaced by the next.

No deposit, no space limit, no time-locked fields: those are stored as given and never revealed.

Source: pallet_commitments by behaviour.
"""

from __future__ import annotations

from typing import Any

from subnet.localnet.devchain.dispatch import Context, Handler, module_error
from subnet.localnet.devchain.subnets import read

# Encoded: CommitmentOf holds deposit, block and the info exactly as it was sent.
NO_DEPOSIT = bytes(8)
BLOCK_BYTES = 4
NETUID_BYTES = 2


def set_commitment(context: Context, netuid: int, info: Any) -> None:
    if read(context.state, "Uids", netuid, context.who) is None:
        raise module_error("Commitments", "AccountNotAllowedCommit")
    arguments = context.encoded_arguments
    arguments.take(NETUID_BYTES)
    registration = NO_DEPOSIT + context.block.to_bytes(BLOCK_BYTES, "little") + arguments.rest()
    context.state.write(context.state.codec.key("Commitments", "CommitmentOf", (netuid, context.who)), registration)
    context.emit("Commitments", "Commitment", {"netuid": netuid, "who": context.who})


CALLS: dict[str, Handler] = {"set_commitment": set_commitment}
