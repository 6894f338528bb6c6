"""For engines with a scheduler and a KV cache of their own, in processes of their own: vLLM, SGLang."""
