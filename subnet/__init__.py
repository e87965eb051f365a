"""Liquid: one model trained by machines that nobody owns together."""
