"""KV cache: names of blocks, a pool of them, and the registry of an engine's own names."""
