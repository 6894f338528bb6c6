"""TensorRT-LLM by its LLM API: token ids in and out. Written against its published signatures, not run on hardware."""
