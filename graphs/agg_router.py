"""Aggregated serving with several workers behind a KV-aware router: requests go where their prefix is cached."""

from graphs.components import Frontend, Processor, Worker

Frontend.link(Processor).link(Worker)  # type: ignore[attr-defined]  # mypy does not see what class decorators return
