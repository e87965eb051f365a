"""The same decisions under virtual time, with many peers and faults."""
