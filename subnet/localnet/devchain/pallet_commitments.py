"""On-chain commitments of neurons: one small record per hotkey and subnet, replaced by the next.

No deposit, no space limit, no time-locked fields: those are stored as given and never revealed.

Source: pallet_commitments by behaviour.
"""

from __future__ import annotations

from typing import Any

from subnet.localnet.devchain.dispatch import Context, Handler, module_error
from subnet.localnet.devchain.subnets import read


def set_commitment(context: Context, netuid: int, info: dict[str, Any]) -> None:
    if read(context.state, "Uids", netuid, context.who) is None:
        raise module_error("Commitments", "AccountNotAllowedCommit")
    record = {"deposit": 0, "block": context.block, "info": info}
    context.state.put("Commitments", "CommitmentOf", record, netuid, context.who)
    context.emit("Commitments", "Commitment", {"netuid": netuid, "who": context.who})


CALLS: dict[str, Handler] = {"set_commitment": set_commitment}
