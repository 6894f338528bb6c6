"""Workers that come and go in a replay, and planners judged in it."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dynamod.cli.app import run
from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.features.planner.observation import Observation
from dynamod.features.planner.settings import PlannerSettings
from dynamod.features.replay.picture import draw
from dynamod.features.replay.planned import Game, sweep
from dynamod.features.replay.scaling import Plan, Scaling, ScalingReplay
from dynamod.features.replay.simulate import Outcome, Replay
from dynamod.features.replay.trace import Conversations, make_conversations, write_trace
from dynamod.message.errors import UserError
from dynamod.router.settings import RouterSettings

MACHINE = SchedulerSettings(block_size=64, num_gpu_blocks=2000, max_num_seqs=256, max_num_batched_tokens=8192)
ARRIVALS = make_conversations(Conversations(users=60, rate=2.0, pause=1000.0), 3)
KV = RouterSettings("kv")

PROGRAM = """
import json, sys
first = json.loads(sys.stdin.readline())
for number, line in enumerate(sys.stdin):
    tick = json.loads(line)
    target = min(first["max_workers"], 1 + number) if number < 3 else None
    print(json.dumps({"target": target, "reason": "up"}), flush=True)
"""


def scaled(plan: Plan, first: int = 1, startup: float = 10.0, most: int = 4) -> tuple[ScalingReplay, Outcome]:
    replay = ScalingReplay(MACHINE, TIMINGS["later"], KV, Scaling(first, most, startup), plan)
    outcome = replay.run(ARRIVALS)
    assert len(outcome.served) == len(ARRIVALS), "whoever comes and goes"
    return replay, outcome


def script(*targets: int | None) -> Callable[[Observation], int | None]:
    left = list(targets)
    return lambda _seen: left.pop(0) if left else None


def test_with_fixed_workers_it_is_the_plain_replay() -> None:
    replay, outcome = scaled(lambda _seen: None, first=3)
    assert outcome == Replay(3, MACHINE, TIMINGS["later"], KV).run(ARRIVALS)
    assert replay.hours == pytest.approx(3 * outcome.makespan / 3.6e6, rel=0.05)


def test_workers_come_when_they_have_started_and_go_when_they_have_ended() -> None:
    replay, _ = scaled(script(3, None, None, 1))
    assert [(moment.ready, moment.expected) for moment in replay.curve[:5]] == [(1, 3), (1, 3), (3, 3), (1, 1), (1, 1)]


def test_workers_that_are_given_up_while_they_start_never_come() -> None:
    replay, _ = scaled(script(3, 1))
    assert max(moment.ready for moment in replay.curve) == 1


def test_the_hours_of_starting_workers_count() -> None:
    plain, _ = scaled(script())
    started, _ = scaled(script(2, 1))
    assert started.hours - plain.hours == pytest.approx(5 / 3600, rel=0.5)


def test_requests_wait_for_the_first_worker() -> None:
    _, outcome = scaled(script(1), first=0)
    assert max(outcome.ttft) > 10_000


def test_more_than_the_most_are_never_started() -> None:
    replay, _ = scaled(script(9))
    assert max(moment.expected for moment in replay.curve) == 4


def test_planners_see_what_there_is() -> None:
    seen: list[Observation] = []
    scaled(lambda one: seen.append(one))
    tokens = sum(sum(one.arrived) for one in seen)
    assert 0 < tokens < sum(one.length for one in ARRIVALS)
    steps = [step for one in seen for worker in one.ready for step in worker.steps]
    assert {step.prefill > 0 for step in steps} == {True, False}
    assert all(step.seconds > 0 for step in steps if step.prefill or step.context)
    assert all(worker.capacity == 2000 * 64 for one in seen for worker in one.ready)


def game(**settings: Any) -> Game:
    return Game(ARRIVALS, MACHINE, TIMINGS["later"], KV, PlannerSettings(max_gpu_budget=4, **settings), 1)


def test_ours_is_cheaper_than_the_most_and_better_than_the_least() -> None:
    ours, least, most = (game().play(name, 0.0) for name in ("sla", "static:1", "static:4"))
    assert ours.hours < most.hours
    assert ours.goodput > most.goodput
    assert ours.missed <= least.missed
    assert ours == game().play("sla", 0.0), "nothing is left to chance"


def test_a_program_is_asked(tmp_path: Path) -> None:
    (tmp_path / "planner.py").write_text(PROGRAM)
    found = game().play(f"command:latency:{sys.executable} {tmp_path / 'planner.py'}", 0.0)
    assert [moment.expected for moment in found.curve[:4]] == [1, 2, 3, 3]


def test_a_sweep_and_its_picture() -> None:
    found = [game().play(name, 0.0) for name in sweep(PlannerSettings(max_gpu_budget=2))]
    assert [one.planner for one in found[:2]] == ["static:1", "static:2"]
    picture = draw(found, "a & b")
    assert picture.count("<circle") == len(found)
    assert picture.count("<polyline") == 1 + 2 * len(found), "the load; workers and first tokens of each"
    assert draw(found[:1], "one").count("<circle") == 0
    assert "a &amp; b" in picture


def play(*arguments: str, trace: str = "conversations") -> int:
    return run(["bench", "replay", trace, "--block-size", "64", "--workers", "1", *arguments])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, trace = tmp_path / "front.svg", tmp_path / "trace.jsonl"
    write_trace(trace, ARRIVALS, 64)
    limit = '{"max-gpu-budget": 2}'
    flags = ["--planner-settings", limit, "--startup", "0", "--startup", "30", "--plot", str(picture)]
    assert play("--planner", "sla", "--planner", "static:2", *flags, "-o", "json", trace=str(trace)) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["planner"], one["startup"]) for one in found] == [
        *(("sla", 0), ("static:2", 0), ("sla", 30), ("static:2", 30))
    ]
    assert all(one["goodput_per_worker_hour"] > 0 for one in found)
    assert picture.read_text().startswith("<svg")
    assert play("--planner", "sla", "--planner-settings", limit) == 0
    assert "GOOD PER WORKER HOUR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--planner", "oracle"], "unknown planner 'oracle'"),
        (["--planner", "static:x"], "'x' is no number of workers"),
        (["--planner", "command:latency:/nowhere/planner"], "cannot be started"),
        (["--planner", f"command:load:{sys.executable} -c pass"], "does not answer as it should"),
        (["--planner", "sla:2"], "sla:2"),
        (["--planner", "sla:x"], "sla:x"),
        (["--planner", "sla", "--planner-settings", '{"min-endpoint": 9}'], "min-endpoint 9 is above"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        play(*arguments)
