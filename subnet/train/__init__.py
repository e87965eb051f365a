"""The training of one stage: engine, journal, optimiser, merge arithmetic; knows no network."""
