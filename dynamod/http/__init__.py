"""The HTTP server: connections, SSE bytes, error forms, keys, health, /metrics."""
