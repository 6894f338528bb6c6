"""Aggregated serving: one kind of worker does prefill and decode."""

from graphs.components import Frontend, Processor, Worker

Frontend.link(Processor).link(Worker)
