"""`dynamo bench replay --planner`: planners judged in one replay."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynamod.cli.options import Form
from dynamod.cli.tables import table
from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import Timing
from dynamod.features.planner.settings import settings_of
from dynamod.router.settings import RouterSettings

from . import planned
from .picture import draw
from .trace import Arrival


def play(
    arrivals: Sequence[Arrival],
    machine: SchedulerSettings,
    timing: Timing,
    router: RouterSettings,
    given: Mapping[str, Any],
    planners: Sequence[str],
    startups: Sequence[float],
    workers: int,
    sweep: bool,
    seed: int,
    plot: str | None,
    output: Form,
) -> None:
    """Play each planner with each start-up time, and print what came of it."""
    settings = settings_of(given)
    game = planned.Game(arrivals, machine, timing, router, settings, min(workers, settings.max_gpu_budget), seed)
    names = [*planners, *(planned.sweep(settings) if sweep else ())]
    results = [game.play(name, startup) for startup in startups for name in names]
    if plot is not None:
        Path(plot).write_text(draw(results, f"{len(arrivals)} requests"), encoding="utf-8")
    if output is Form.JSON:
        print(json.dumps([one.numbers() for one in results], indent=2))
    else:
        print(table(planned.HEAD, [planned.row(one) for one in results]))
