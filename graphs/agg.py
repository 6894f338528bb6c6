"""Aggregated serving: one kind of worker does prefill and decode."""

from graphs.components import Frontend, Processor, Worker

Frontend.link(Processor).link(Worker)  # type: ignore[attr-defined]  # mypy does not see what class decorators return
