"""Disaggregated serving behind the KV-aware router, which chooses prefill and decode workers."""

from graphs.components import Frontend, PrefillWorker, Processor, Worker

Frontend.link(Processor).link(Worker).link(PrefillWorker)  # type: ignore[attr-defined]  # as in graphs.agg
