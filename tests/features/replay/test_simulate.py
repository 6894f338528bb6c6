"""Replays: the same again to the last digit, all requests end, better routing is seen to be better."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dynamod.cli.app import run
from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.features.replay.report import draw, numbers
from dynamod.features.replay.simulate import Replay
from dynamod.features.replay.trace import Arrival, Conversations, make_conversations
from dynamod.message.errors import UserError
from dynamod.router.cost import ORIGINAL
from dynamod.router.policies import NAMES
from dynamod.router.router import RouterSettings

PLAN = Conversations(users=60, turns=4, system_tokens=512, question_tokens=100, answer_tokens=30, block_size=32)
ARRIVALS = make_conversations(PLAN, 7)
MACHINE = SchedulerSettings(block_size=32, num_gpu_blocks=400, max_num_batched_tokens=2048)


def play(settings: RouterSettings, seed: int = 0, machine: SchedulerSettings = MACHINE) -> dict[str, Any]:
    return numbers(Replay(4, machine, TIMINGS["later"], settings, seed).run(ARRIVALS))


@pytest.mark.parametrize("mode", NAMES)
def test_everything_ends_and_repeats_itself(mode: str) -> None:
    first = play(RouterSettings(mode))
    assert first["requests"] == len(ARRIVALS)
    assert sum(first["requests_by_worker"]) == len(ARRIVALS)
    assert json.dumps(first) == json.dumps(play(RouterSettings(mode)))


def test_knowing_the_caches_is_worth_it() -> None:
    """With long prompts, where computing them is what takes the time."""
    plan = Conversations(users=80, turns=5, system_tokens=4096, question_tokens=600, answer_tokens=60, block_size=128)
    arrivals, machine = make_conversations(plan, 3), SchedulerSettings(block_size=128, num_gpu_blocks=400)
    blind, original, ours = (
        numbers(Replay(4, machine, TIMINGS["later"], settings).run(arrivals))
        for settings in (RouterSettings(), RouterSettings("kv", ORIGINAL), RouterSettings("kv"))
    )
    assert ours["reuse"] > original["reuse"] > blind["reuse"]
    assert ours["ttft_ms"]["mean"] < blind["ttft_ms"]["mean"]


def test_a_tier_is_worth_it_and_knowing_of_it_too() -> None:
    plan = Conversations(users=80, turns=5, system_tokens=4096, question_tokens=600, answer_tokens=60, block_size=128)
    arrivals, machine = make_conversations(plan, 3), SchedulerSettings(block_size=128, num_gpu_blocks=200)
    block = machine.block_size * machine.kv_bytes_per_token
    tiered = msgspec.structs.replace(machine, kv_host_gb=8 * 200 * block / 1e9, kv_offload_after=1)

    def played(machine: SchedulerSettings, *, blind: bool = False) -> dict[str, Any]:
        return numbers(Replay(4, machine, TIMINGS["later"], RouterSettings("kv"), blind=blind).run(arrivals))

    without, aware, blind = played(machine), played(tiered), played(tiered, blind=True)
    assert aware["reuse"] > blind["reuse"] > without["reuse"]
    assert aware["ttft_ms"]["mean"] < blind["ttft_ms"]["mean"] < without["ttft_ms"]["mean"]
    assert aware["requests"] == without["requests"] == len(arrivals)


def test_an_idle_router_has_an_empty_book() -> None:
    replay = Replay(3, MACHINE, TIMINGS["later"], RouterSettings("kv"))
    replay.run(ARRIVALS)
    assert replay.router.statistics().active == 0
    assert replay.router.state.index.statistics().orphans == 0


def test_one_request_takes_what_the_formula_says() -> None:
    outcome = Replay(1, MACHINE, TIMINGS["later"], RouterSettings()).run([Arrival(5.0, 100, 3, (1, 2, 3))])
    timing = TIMINGS["later"]
    first = timing.prefill_ms(100)
    assert outcome.ttft == [pytest.approx(first)]
    gaps = [timing.decode_ms((100 + made) / (400 * 32)) for made in (1, 2)]
    assert outcome.itl == pytest.approx(gaps)
    assert outcome.e2e == [pytest.approx(first + sum(gaps))]


def test_the_index_knows_what_the_pools_hold() -> None:
    replay = Replay(4, MACHINE, TIMINGS["later"], RouterSettings("kv"))
    replay.run(ARRIVALS)
    for worker in replay._workers:
        assert replay.router.state.index.count(worker.number) == len(worker.scheduler.pool.names())


def test_a_prompt_that_fits_nowhere_is_said_before() -> None:
    with pytest.raises(UserError, match="does not fit"):
        Replay(1, SchedulerSettings(block_size=32, num_gpu_blocks=4), TIMINGS["later"], RouterSettings()).run(ARRIVALS)


def test_the_picture_is_one(tmp_path: Path) -> None:
    results = {"a <b>": play(RouterSettings()), "kv": play(RouterSettings("kv"))}
    root = ET.fromstring(draw(results, "x & y"))
    assert root.tag.endswith("svg")
    assert len([one for one in root.iter() if one.tag.endswith("rect")]) == 1 + 5 * 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, plot = str(tmp_path / "t.jsonl"), str(tmp_path / "p.svg")
    assert run(["bench", "conversations", trace, "--users", "20", "--block-size", "32"]) == 0
    capsys.readouterr()
    words = ["bench", "replay", trace, "--block-size", "32", "--workers", "2", "--blocks", "4000"]
    assert run([*words, "--router-mode", "kv", "--output", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["ttft_ms"]) == {"mean", "p50", "p90", "p99"}
    assert {"reuse", "itl_ms", "e2e_ms"} <= set(found)
    assert run([*words, "--router-mode", "all", "--plot", plot]) == 0
    table = capsys.readouterr().out
    assert all(f"| {name} " in table for name in ("round-robin", "kv-original", "kv", "power-of-two"))
    assert Path(plot).read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--router-mode", "best"], "unknown router mode 'best'"),
        (["--extra-engine-args", '{"kv_host_gb": -1}'], "kv_host_gb: expected float >= 0.0, got -1"),
        (["--extra-engine-args", "[1]"], "--extra-engine-args is [1]"),
        (["--extra-engine-args", "{"], "--extra-engine-args is no JSON"),
        (["--router-cost", '{"speed": 1}'], "speed"),
        (["--router-cost", "{"], "--router-cost is no JSON"),
        (["--timing", "fast"], "known timings: 2025, later"),
        (["--arrival-speedup", "0"], "--arrival-speedup"),
        (["--output", "xml"], "is not one of"),
    ],
)
def test_mistakes_on_the_command_line(flags: list[str], says: str) -> None:
    with pytest.raises(UserError) as caught:
        run(["bench", "replay", "conversations", *flags])
    assert says in caught.value.line()
