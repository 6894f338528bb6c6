"""Seeds with all faults hold all invariants, and a seed is the same again to the byte."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dynamod.features.prefill.handoff import HandoffEndpoint
from dynamod.features.prefill.transfer.sessions import Sessions
from dynamod.message.errors import UserError
from tools.sim.run import simulate
from tools.sim.scale import measure
from tools.sim.shape import FAULTS, Shape, check_shape, faults_of
from tools.sim.transfer import SimulatedTransfer

ROOT = Path(__file__).parents[3]
SCRIPT = "from tools.sim.run import simulate\nfor seed in (4, 12, 99):\n    print(simulate(seed).digest)"


@pytest.mark.parametrize("first", [0, 10, 20])
def test_seeds_hold(first: int) -> None:
    for seed in range(first, first + 10):
        outcome = simulate(seed)
        assert not outcome.problems, f"dynamo sim --events --seed {seed}\n" + "\n".join(outcome.lines[-80:])
        assert sum(outcome.ends.values()) == Shape().requests


@pytest.mark.parametrize(
    "seed",
    [
        5,
        22,
        877,
        957,
        1631,
        7034,
        7228,
        880049,
        2600524,
        2600648,
        2602258,
        2602749,
        2602767,
        2600418,
        2601310,
        2601316,
        2601776,
        2602622,
        3000273,
        5602254,
        5602314,
        5602584,
        5700120,
        5700333,
        6000166,
        7000626,
        7000883,
        11000911,
        12000875,
        13001048,
        13001601,
        14000686,
        15000453,
        15000590,
        15000936,
        16001790,
        16002219,
        16002504,
        17000077,
        18000059,
        20000131,
        21002705,
        3011300904,
        3011301229,
        3011301772,
        3011700489,
    ],
)
def test_seeds_that_found_something_hold(seed: int) -> None:
    outcome = simulate(seed)
    assert not outcome.violations, "\n".join(outcome.lines[-80:])


def test_seeds_are_worth_it() -> None:
    """Requests do move, some fail for a reason, and every fault happens."""
    outcomes = [simulate(seed) for seed in (*range(100, 125), 138, 151)]
    assert sum(outcome.moves for outcome in outcomes) > 50
    assert {end for outcome in outcomes for end in outcome.ends} >= {"finished", "failed", "left", "cut off"}
    assert sum(outcome.harmed for outcome in outcomes) > 100
    assert any(outcome.gentle for outcome in outcomes)
    assert {fault for outcome in outcomes for fault in outcome.faults} >= set(FAULTS) - {"leave", "poison"}


def test_blocks_are_moved_by_engines_too(monkeypatch: pytest.MonkeyPatch) -> None:
    read, came, failed = SimulatedTransfer.read, Counter[str](), Counter[str]()

    async def counted(self: SimulatedTransfer, held: Any, params: Any) -> int:
        failed[self.shape] += 1
        size = await read(self, held, params)
        failed[self.shape] -= 1
        came[self.shape] += size > 0
        return size

    monkeypatch.setattr(SimulatedTransfer, "read", counted)
    for seed in range(40):
        assert not simulate(seed, Shape(faults=faults_of("transfer,crash,partition"))).problems
    assert set(came) == set(failed) == {"pull", "rendezvous"}
    assert min(*came.values(), *failed.values()) > 5


def test_sessions_expire_and_layouts_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests whose prompts were lost that way end with the reference text: the clients look at that."""
    forget, read = Sessions.forget, HandoffEndpoint._read
    endings, failures, later = Counter[str](), Counter[str](), Counter[str]()

    def counted(self: Sessions, session: Any, ending: Any) -> None:
        endings[ending] += 1
        forget(self, session, ending)

    async def noted(self: HandoffEndpoint, held: Any, request: Any, *more: Any) -> None:
        before = {kind: self._prompts.failed[kind] for kind in ("gone", "layout")}
        await read(self, held, request, *more)
        failures.update(kind for kind, count in before.items() if self._prompts.failed[kind] > count)

    monkeypatch.setattr(Sessions, "forget", counted)
    monkeypatch.setattr(HandoffEndpoint, "_read", noted)
    for seed in range(60):
        outcome = simulate(seed, Shape(faults=faults_of("transfer,crash,hang")))
        assert not outcome.problems
        later.update(outcome.ends)
    assert min(endings["expired"], failures["gone"], failures["layout"]) > 5, (endings, failures)
    assert endings["read"] > 100
    assert later["finished"] > 1000


def test_a_seed_is_the_same_again() -> None:
    first, second = simulate(7), simulate(7)
    assert first.lines == second.lines
    assert first.digest == second.digest
    assert first.digest != simulate(8).digest


def test_hashes_do_not_matter() -> None:
    report = []
    for value in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": value, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        report.append(done.stdout)
    assert report == ["".join(f"{simulate(seed).digest}\n" for seed in (4, 12, 99))] * 3


def test_without_faults_nothing_moves() -> None:
    outcome = simulate(3, Shape(faults=()))
    assert not outcome.violations
    assert outcome.ends == {"finished": 40}
    assert outcome.moves == 0


@pytest.mark.parametrize("shape", [Shape(1, 1, 1, 10), Shape(2, 2, 3, 20), Shape(5, 12, 3, 60)], ids=str)
def test_other_shapes_hold(shape: Shape) -> None:
    for seed in range(3):
        outcome = simulate(seed, shape)
        assert not outcome.problems, outcome.problems


def test_few_lines_are_kept_and_all_are_counted() -> None:
    short, whole = simulate(4, kept=5), simulate(4)
    assert short.lines == whole.lines[-5:]
    assert (short.digest, short.events) == (whole.digest, len(whole.lines))


def test_faults_are_chosen_by_name() -> None:
    assert faults_of("hang, crash") == ("crash", "hang")
    assert faults_of("node_death") == ("node-death",)
    assert faults_of("all,-drop") == tuple(fault for fault in FAULTS if fault != "drop")
    assert faults_of("-drop") == faults_of("all,-drop")
    assert faults_of("none") == ()
    with pytest.raises(UserError, match="unknown fault 'fire'"):
        faults_of("fire")
    with pytest.raises(UserError, match="--workers is 0"):
        check_shape(Shape(workers=0))


def test_scale_is_measured() -> None:
    found = measure(Shape(4, 12, 2, 30, faults=(), span=3.0))
    assert found["problems"] == []
    assert found["requests_ended"] == {"finished": 30}
    assert found["registry_events_per_ingress_at_start"] == 24
    assert found["registry_events_while_serving"] == 0
    assert found["registry_events_per_ingress_for_a_new_worker"] == 2
    for name in ("decision_us", "change_us_per_ingress", "index_bytes_per_ingress", "bytes_per_request"):
        assert found[name] > 0, name


def test_a_slow_worker_is_not_given_up() -> None:
    """Where it is the only instance its requests wait: none moves, fails, or is sent twice.

    They are few: many that wait for each other at such a worker reach the clock for their first token.
    """
    happened = 0
    for seed in range(40):
        outcome = simulate(seed, Shape(1, 1, 1, 6, faults=faults_of("slow-worker")))
        assert not outcome.problems, outcome.problems
        happened += outcome.faults.get("slow-worker", 0)
        assert outcome.ends == {"finished": 6}
        assert outcome.moves == 0
    assert happened > 5
