"""Microbatch id to tokens, the same for everybody."""
