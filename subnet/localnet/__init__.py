"""Everything that lets a whole swarm run on one machine without Docker, a node binary or a network.

`devchain` is an embedded chain that the unmodified Bittensor SDK talks to. Nothing here is needed on a real network.
"""
