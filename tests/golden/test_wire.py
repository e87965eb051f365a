"""Golden bytes of the wire format: what a boundary puts on the wire for one small, fixed input.

A change here is a change of the protocol: raise ``subnet.records.PROTOCOL`` with it.
"""

from __future__ import annotations

import pytest
import torch

from subnet.codec.tensors import pack
from subnet.model.boundary import make_boundary
from tests.tiny import text_corpus, tiny_run

# Exact in fp32, with both signs, a zero and a token without gradient.
VALUES = (torch.arange(-12, 12, dtype=torch.float32).view(1, 2, 12) / 8).contiguous()
GRADS = torch.cat((VALUES[:, :1] / 1024, torch.zeros(1, 1, 12)), 1)
SEED = 7

GOLDEN = {
    ("int8", "forward"): (
        '{"__metadata__":{"envelope":"e"},"scale":{"dtype":"F32","shape":[1,2,1],"data_offsets":[0,8]},"levels":{"dtype":"I8","shape":[1,2,12],"data_offsets":[8,32]}}',
        "0683413cc662313c818c96a1abb6c0cbd6e0ebf5000c17232e3a45515c68737f",
    ),
    ("int8", "backward"): (
        '{"__metadata__":{"envelope":"e"},"scale":{"dtype":"F32","shape":[1,2,1],"data_offsets":[0,8]},"levels":{"dtype":"I8","shape":[1,2,12],"data_offsets":[8,32]}}',
        "068341370000803f818c96a1abb6c0cbd6e0ebf5000000000000000000000000",
    ),
    ("anchored", "forward"): (
        '{"__metadata__":{"envelope":"e"},"step":{"dtype":"F32","shape":[12],"data_offsets":[0,48]},"digits":{"dtype":"U8","shape":[1,2,3],"data_offsets":[48,54]}}',
        "432e873f72da783f56c3653f4ebd553ff983493fb8cf413fa62c3f3fb8cf413ff983493f4ebd553f56c3653f72da783f004055aafaff",
    ),
    ("anchored", "backward"): (
        '{"__metadata__":{"envelope":"e"},"digits":{"dtype":"U8","shape":[1,2,3],"data_offsets":[0,6]},"scale":{"dtype":"U8","shape":[1,2,1],"data_offsets":[6,8]}}',
        "007504797904b400",
    ),
}


def body(kind: str, way: str) -> bytes:
    changes = {"boundary.kind": kind, "boundary.dims": 12, "boundary.levels": 4, "boundary.grad_levels": 3}
    boundary = make_boundary(tiny_run(text_corpus(), **changes))
    return pack(boundary.pack(VALUES) if way == "forward" else boundary.pack_grad(GRADS, SEED), {"envelope": "e"})


@pytest.mark.parametrize(("kind", "way"), GOLDEN)
def test_the_bytes_on_the_wire(kind: str, way: str) -> None:
    raw = body(kind, way)
    end = 8 + int.from_bytes(raw[:8], "little")
    assert (raw[8:end].decode().rstrip(), raw[end:].hex()) == GOLDEN[kind, way]
