"""Replays with prefill workers."""

import json
from pathlib import Path

import pytest

from dynamod.cli.app import run
from dynamod.engine.mocker.arguments import SchedulerSettings
from dynamod.engine.mocker.timing import TIMINGS
from dynamod.features.prefill.settings import PrefillSettings
from dynamod.features.replay.pools import PoolReplay
from dynamod.features.replay.simulate import Outcome, Replay, Served
from dynamod.features.replay.trace import Arrival, Conversations, make_conversations
from dynamod.router.settings import RouterSettings

MACHINE = SchedulerSettings(block_size=64, num_gpu_blocks=2000, max_num_seqs=256, max_num_batched_tokens=8192)
ARRIVALS = make_conversations(Conversations(users=40, rate=8.0, pause=1000.0), 3)
KV = RouterSettings("kv")


def pools(prefill: PrefillSettings, arrivals: list[Arrival] = ARRIVALS, **more: float) -> tuple[PoolReplay, Outcome]:
    replay = PoolReplay(3, 1, MACHINE, TIMINGS["later"], KV, disagg=prefill, **more)
    return replay, replay.run(arrivals)


def test_without_prefill_workers_it_is_the_plain_replay() -> None:
    plain = Replay(3, MACHINE, TIMINGS["later"], KV).run(ARRIVALS)
    assert pools(PrefillSettings(remote_prefill=False))[1] == plain
    assert PoolReplay(3, 0, MACHINE, TIMINGS["later"], KV).run(ARRIVALS) == plain
    assert len(plain.served) == len(ARRIVALS)
    assert sorted(one.ttft for one in plain.served) == sorted(plain.ttft)


def test_all_prompts_come_over() -> None:
    replay, outcome = pools(PrefillSettings(conditional_disagg=False))
    assert len(outcome.served) == len(ARRIVALS)
    assert sum(replay.reasons.values()) == len(ARRIVALS)
    assert replay.reasons.keys() <= {"always", "cached"}
    assert replay.moved > 0
    assert len(replay.prefill_router.state.active) == len(replay.router.state.active) == 0
    assert pools(PrefillSettings(conditional_disagg=False))[1] == outcome, "equal settings give equal results"


def test_a_slow_transfer_delays_the_first_token_and_nothing_else() -> None:
    alone = [Arrival(0.0, 1000, 20, tuple(range(1, 16)))]
    fast, slow = (
        pools(PrefillSettings(conditional_disagg=False), alone, transfer=ms)[1].served[0] for ms in (0.0, 1.0)
    )
    assert slow.ttft - fast.ttft == 15 * 64
    assert slow.gap == pytest.approx(fast.gap)


def test_answers_are_disturbed_less_than_without() -> None:
    """The gaps between tokens, while long prompts arrive: at workers that have half of what others have."""
    answers = [Arrival(0.0, 64, 400, (number,)) for number in range(1, 7)]
    prompts = [Arrival(200.0 * n, 6400, 1, tuple(range(n * 1000, n * 1000 + 100))) for n in range(1, 20)]
    arrivals = sorted([*answers, *prompts], key=lambda one: one.at)
    never = Replay(4, MACHINE, TIMINGS["later"], KV).run(arrivals)
    replay, ours = pools(PrefillSettings(), arrivals)
    assert replay.reasons["sooner"] > 0
    assert max(ours.itl) < max(never.itl)


def test_goodput() -> None:
    outcome = Outcome([Served(10.0, 5.0), Served(11.0, 5.0), Served(10.0, 6.0)], makespan=2000.0)
    assert outcome.goodput(10.0, 5.0) == 0.5
    assert outcome.goodput(11.0, 6.0) == 1.5


def test_by_the_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace, means = str(tmp_path / "trace.jsonl"), []
    assert run(["bench", "conversations", trace, "--users=20", "--rate=10"]) == 0
    capsys.readouterr()
    for prefill in ("0", "1"):
        words = ["bench", "replay", trace, "--block-size=64", "--workers=2", f"--prefill-workers={prefill}"]
        assert run([*words, "--output=json"]) == 0
        means.append(json.loads(capsys.readouterr().out)["itl_ms"]["p99"])
    assert means[0] != means[1]
