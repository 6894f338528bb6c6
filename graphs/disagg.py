"""Disaggregated serving: prefill workers compute long prompts, decode workers answer."""

from graphs.components import Frontend, PrefillWorker, Processor, Worker

Frontend.link(Processor).link(Worker).link(PrefillWorker)  # type: ignore[attr-defined]  # as in graphs.agg
