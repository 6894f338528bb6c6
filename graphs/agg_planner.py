"""Aggregated serving with as many workers as the load needs."""

from graphs.components import Frontend, Planner, Processor, Worker

Frontend.link(Processor).link(Worker)  # type: ignore[attr-defined]  # as in graphs.agg
Frontend.link(Planner).link(Worker)  # type: ignore[attr-defined]
