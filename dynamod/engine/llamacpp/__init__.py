"""llama.cpp as a token engine: our own continuous batching and prefix cache over llama-cpp-python's low-level calls."""
