"""A development chain: a websocket JSON-RPC server that the unmodified Bittensor 11 SDK, `btcli` and
substrate-interface use.

It is not a consensus node: one process produces all blocks, finality follows at once unless a fault holds it back,
there is no AMM, no root subnet, no delegation, no secrecy in its MEV shield, and its spec number is its own. Names,
indices, types and error codes are the real ones. docs/chain.md says what works with which tool.

Layers, each on the ones before it:
    scale, registry, tables_*, metadata     how the chain describes itself (knows nothing of running one)
    shield, state, extrinsics               envelopes; typed storage with bounded history; signed transactions
    yuma, pallet_*, runtime_api             what transactions and epochs do; what clients may ask
    blocks, faults, store                   finality; switchable failures; the chain in a file
    chain, rpc, genesis, cli                making blocks; the socket; what is there at first; the program
"""
