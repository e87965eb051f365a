"""Decides: rounds, routing, roster, onboarding as pure functions of records, time and seed."""
