"""A miner's parts put together: custody, life cycle, merging."""
