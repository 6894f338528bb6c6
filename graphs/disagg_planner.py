"""Disaggregated serving with as many prefill and decode workers as the load needs."""

from graphs.components import Frontend, Planner, PrefillWorker, Processor, Worker

Frontend.link(Processor).link(Worker).link(PrefillWorker)  # type: ignore[attr-defined]  # as in graphs.agg
Frontend.link(Planner).link(Worker)  # type: ignore[attr-defined]
Planner.link(PrefillWorker)  # type: ignore[attr-defined]
