"""How the pools of planners look on a terminal."""

import time

from dynamod.cli.tables import table

from .commands import PoolStatus

EXPLAINED = 20
"""Ticks of a planner that are shown; JSON has all that are kept."""


def status_of(found: list[PoolStatus], _width: int | None) -> str:
    """`dynamo planner status`: a line per pool."""
    rows = []
    for pool in found:
        last = pool.last or {}
        tick = last.get("tick", {})
        why = last.get("refused") or tick.get("reason", "not looked at yet")
        if last.get("last_error"):
            why += f": {last['last_error'][:80]}"
        rows.append(
            [
                *(pool.process.partition("/")[0], pool.component, pool.state),
                *(str(last.get("ready", "-")), str(last.get("starting", "-")), str(tick.get("target", "-"))),
                *(f"{pool.min} to {pool.max}", why),
            ]
        )
    return table(["GRAPH", "POOL", "STATE", "READY", "STARTING", "TARGET", "LIMITS", "WHY"], rows)


def decisions(pools: list[PoolStatus], _width: int | None) -> str:
    """`dynamo explain planner`: a table per pool."""
    return "\n\n".join(map(_ticks, pools))


def _ticks(pool: PoolStatus) -> str:
    """The last ticks of a pool, one line each."""
    heads = ["TIME", "READY", "STARTING", "REQUESTS", "QUEUED", "KV TOKENS", "NEEDED", "FORECAST", "QUEUE", "KEPT"]
    rows: list[list[str]] = []
    for record in pool.records[-EXPLAINED:]:
        tick = record["tick"]
        why = [record.get("switched", "")]
        done = "" if record["replicas"] is None else f"now {record['replicas']} processes"
        rows.append(
            [
                time.strftime("%H:%M:%S", time.localtime(record["at"])),
                *(str(record[key]) for key in ("ready", "starting", "arrived", "queued", "context")),
                *(str(tick[key]) for key in ("needed", "forecast", "queue", "kept")),
                *(str(tick["target"]), ", ".join(filter(None, [tick["reason"], *why, record["refused"], done]))),
            ]
        )
    last = pool.records[-1] if pool.records else {"startup": 0.0}
    head = f"pool {pool.component}: {pool.min} to {pool.max} workers, which take {last['startup']:.1f} s to start"
    return f"{head}\n{table([*heads, 'TARGET', 'WHY'], rows)}" if rows else f"{head}; not looked at yet"
