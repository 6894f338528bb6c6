"""KV cache: how blocks are named, what is told of them, and a pool that keeps them."""
