"""The shell around the swarm's decisions: HTTP in, tick, ledger out."""
