"""Doubts: receipts, challenges, replay, tolerances."""
