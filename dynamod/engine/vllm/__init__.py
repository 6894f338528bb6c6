"""vLLM in the worker process (`AsyncLLM`); its engine and workers are processes of its own below it."""
