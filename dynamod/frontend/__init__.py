"""The front door: OpenAI routes over HTTP, streaming, errors, keys, health and metrics."""
