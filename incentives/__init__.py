"""Verified work to on-chain weights: pure functions over records."""
