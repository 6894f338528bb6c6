"""Goodput of planners in a replay, as numbers and as a table; `picture` draws them."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import Timing
from dynamod.features.planner.controller import Controller
from dynamod.features.planner.settings import TARGETS, PlannerSettings, settings_of
from dynamod.message.errors import UserError
from dynamod.router.settings import RouterSettings

from .peer import PeerPlanner
from .scaling import Moment, Plan, Scaling, ScalingReplay
from .simulate import Served
from .trace import Arrival

CONTEXT = 131_072
"""Tokens of the longest prompt that a peer is told of."""

LATE = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Shares of late first tokens that a sweep plans for."""

PEER_TARGETS = ("throughput", "latency", "load")


class Planned(NamedTuple):
    """A planner's result. `good`: requests with first token and gaps in time; `hours`: of workers.

    `served`: requests as they end.
    """

    planner: str
    startup: float
    good: int
    missed: int
    hours: float
    curve: list[Moment]
    served: list[Served]

    @property
    def goodput(self) -> float:
        """Good requests per hour of a worker."""
        return self.good / self.hours if self.hours else 0.0

    def numbers(self) -> dict[str, Any]:
        """All of it, JSON-like, without the curves."""
        found = {**self._asdict(), "goodput_per_worker_hour": round(self.goodput, 1), "hours": round(self.hours, 4)}
        del found["curve"], found["served"]
        return found


HEAD = ("PLANNER", "STARTUP", "GOOD", "MISSED", "WORKER HOURS", "GOOD PER WORKER HOUR")


def row(one: Planned) -> tuple[str, ...]:
    """A line of the table whose head is HEAD."""
    return (one.planner, f"{one.startup:g} s", str(one.good), str(one.missed), f"{one.hours:.3f}", f"{one.goodput:.0f}")


class Game(NamedTuple):
    """What all planners are judged in."""

    arrivals: Sequence[Arrival]
    machine: SchedulerSettings
    timing: Timing
    router: RouterSettings
    settings: PlannerSettings
    first: int
    seed: int = 0

    def play(self, planner: str, startup: float) -> Planned:
        """One planner. Raises UserError for one that is not known."""
        settings = self.settings
        scaling = Scaling(self.first, settings.max_gpu_budget, startup, settings.adjustment_interval)
        if planner.startswith("static:"):
            scaling = Scaling(_count(planner), settings.max_gpu_budget, startup, settings.adjustment_interval)
        with self._plan(planner, startup) as plan:
            replay = ScalingReplay(self.machine, self.timing, self.router, scaling, plan, self.seed)
            outcome = replay.run(self.arrivals)
        good = sum(one.ttft <= settings.ttft and one.gap <= settings.itl for one in outcome.served)
        return Planned(planner, startup, good, len(self.arrivals) - good, replay.hours, replay.curve, outcome.served)

    @contextmanager
    def _plan(self, planner: str, startup: float) -> Iterator[Plan]:
        kind, _, rest = planner.partition(":")
        if kind == "static":
            yield lambda _seen: None
        elif kind in TARGETS:
            yield _decides(Controller(self._own(planner, kind, rest, startup)))
        elif kind == "command" and rest:
            target, _, command = rest.partition(":") if rest.partition(":")[0] in PEER_TARGETS else ("", "", rest)
            with PeerPlanner(shlex.split(command), self._first(target or "throughput")) as peer:
                yield peer
        else:
            known = f"static:N, {', '.join(TARGETS)}, command:TARGET:PROGRAM"
            raise UserError(f"unknown planner '{planner}'", f"known planners: {known}")

    def _own(self, planner: str, kind: str, late: str, startup: float) -> PlannerSettings:
        given = {name: getattr(self.settings, name) for name in PlannerSettings.__struct_fields__}
        try:
            given |= {"optimization_target": kind, "startup": startup, **({"late": float(late)} if late else {})}
            return settings_of(given)
        except ValueError:
            raise UserError(f"--planner {planner}: '{late}' is no number", "for example sla:0.1") from None
        except UserError as error:
            raise UserError(f"--planner {planner}: {error}", error.hint) from None

    def _first(self, target: str) -> dict[str, Any]:
        settings, machine = self.settings, self.machine
        return {
            "target": target,
            "max_kv_tokens": machine.num_gpu_blocks * machine.block_size,
            "context_length": CONTEXT,
            "max_workers": settings.max_gpu_budget,
            "min_workers": settings.min_endpoint,
            "up": round(100 * settings.decode_kv_scale_up_threshold),
            "down": round(100 * settings.decode_kv_scale_down_threshold),
        }


def _decides(controller: Controller) -> Plan:
    return lambda seen: controller.tick(seen).target


def _count(planner: str) -> int:
    text = planner.partition(":")[2]
    if not text.isdecimal() or not int(text):
        raise UserError(f"--planner {planner}: '{text}' is no number of workers", "for example static:4")
    return int(text)


def sweep(settings: PlannerSettings) -> list[str]:
    """Planners whose results draw the front: all static ones, and ours for several shares of late first tokens."""
    static = [f"static:{count}" for count in range(max(1, settings.min_endpoint), settings.max_gpu_budget + 1)]
    return static + [f"sla:{late:g}" for late in LATE]
