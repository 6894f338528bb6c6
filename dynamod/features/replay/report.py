"""Replay results as numbers, as a table, and as a picture."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .simulate import Outcome


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie; 0 for none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean and percentiles, in the unit of the values."""
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered) if ordered else 0.0
    parts = {"mean": mean, **{f"p{int(share * 100)}": percentile(ordered, share) for share in (0.5, 0.9, 0.99)}}
    return {name: round(value, 3) for name, value in parts.items()}


def numbers(outcome: Outcome) -> dict[str, Any]:
    """All of an outcome, JSON-like. Times in milliseconds, throughput per second of virtual time."""
    seconds = outcome.makespan / 1000 or 1.0
    router = outcome.router
    return {
        "requests": len(outcome.e2e),
        "reuse": round(outcome.reuse, 4),
        "ttft_ms": spread(outcome.ttft),
        "itl_ms": spread(outcome.itl),
        "e2e_ms": spread(outcome.e2e),
        "output_tokens_per_s": round(outcome.output_tokens / seconds, 1),
        "duration_s": round(seconds, 3),
        "preemptions": outcome.preemptions,
        "requests_by_worker": outcome.by_worker,
        "regret_blocks": router.regret if router is not None else 0,
    }


HEAD = ("ROUTER", "REUSE", "TTFT MEAN", "P50", "P90", "P99", "ITL P50", "P99", "E2E P50", "P99", "TOKENS/S")


def row(name: str, result: Mapping[str, Any]) -> tuple[str, ...]:
    """A line of the table whose head is HEAD."""
    ttft, itl, e2e = result["ttft_ms"], result["itl_ms"], result["e2e_ms"]
    times = [ttft["mean"], ttft["p50"], ttft["p90"], ttft["p99"], itl["p50"], itl["p99"], e2e["p50"], e2e["p99"]]
    shown = [f"{value:.1f}" for value in times]
    return (name, f"{result['reuse']:.4f}", *shown, f"{result['output_tokens_per_s']:.0f}")


_PANELS: tuple[tuple[str, Callable[[Mapping[str, Any]], float]], ...] = (
    ("prefix reuse (share of prompt tokens)", lambda one: one["reuse"]),
    ("TTFT mean, ms", lambda one: one["ttft_ms"]["mean"]),
    ("TTFT p99, ms", lambda one: one["ttft_ms"]["p99"]),
    ("end to end p50, ms", lambda one: one["e2e_ms"]["p50"]),
    ("ITL p99, ms", lambda one: one["itl_ms"]["p99"]),
)


def draw(results: Mapping[str, Mapping[str, Any]], title: str) -> str:
    """A picture (SVG) with one panel per measure and one bar per router."""
    bar, gap, left, width = 22, 6, 150, 420
    height = len(results) * (bar + gap) + 44
    parts: list[str] = []
    top = 44
    for name, value_of in _PANELS:
        values = {router: float(value_of(result)) for router, result in results.items()}
        largest = max(values.values()) or 1.0
        parts.append(f'<text x="12" y="{top + 14}" class="name">{escape(name)}</text>')
        for index, (router, value) in enumerate(values.items()):
            y = top + 26 + index * (bar + gap)
            length = value / largest * width
            parts.append(f'<text x="{left - 8}" y="{y + 16}" text-anchor="end">{escape(router)}</text>')
            parts.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar}" rx="3"/>')
            parts.append(f'<text x="{left + length + 6:.1f}" y="{y + 16}">{value:.4g}</text>')
        top += height
    style = "text{font:13px sans-serif;fill:#222}.name{font-weight:bold}.title{font-size:16px}rect{fill:#4a7ebb}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 90}" height="{top}">'
    return (
        f'{head}<style>{style}</style><rect width="100%" height="100%" style="fill:#fff"/>'
        f'<text x="12" y="26" class="title">{escape(title)}</text>{"".join(parts)}</svg>\n'
    )


def write_picture(path: Path, results: Mapping[str, Mapping[str, Any]], title: str) -> None:
    """Write `draw` to a file."""
    path.write_text(draw(results, title), encoding="utf-8")
