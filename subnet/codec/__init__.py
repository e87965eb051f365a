"""Tensors to bytes and back; never unpickles."""
