"""Moves bytes between peers and decides nothing."""
