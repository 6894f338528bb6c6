"""How many workers a pool should have: pure decisions from what its workers do and what comes."""
