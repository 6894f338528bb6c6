"""GPUs and nodes of one engine: what it can use, and values against each other."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.cli.flags import RunArguments, parse
from dynamod.cli.run import build
from dynamod.engine.names import ENGINES
from dynamod.engine.placement import Placement
from dynamod.message.errors import UserError
from dynamod.worker.settings import WorkerSettings

MANY = ENGINES["mocker"]._replace(devices=True, nodes=True)
LEADER = ("--num-nodes", "2", "--leader-addr", "10.0.0.1:5000")


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mocker as an engine that runs on several GPUs and nodes."""
    monkeypatch.setitem(ENGINES, "mocker", MANY)


def run(*words: str) -> RunArguments:
    return parse(["out=mocker", "sample", *words])


def refusal(placement: Placement, engine: str = "mocker", gpus: int = 0) -> str:
    with pytest.raises(UserError) as raised:
        placement.check(engine, str, gpus)
    return raised.value.line()


@pytest.mark.parametrize("engine", [name for name, entry in ENGINES.items() if not entry.devices and not entry.file])
def test_an_engine_that_cannot_use_them_says_so(engine: str) -> None:
    Placement(leader_addr="10.0.0.1:5000").check(engine, str)  # one node has no leader
    assert f"tensor_parallel_size 2: {engine} chooses its devices itself" in refusal(Placement(2), engine)
    assert f"base_gpu_id 4: {engine} chooses its devices itself" in refusal(Placement(1, 4), engine)
    assert f"num_nodes 2: {engine} runs on one node" in refusal(Placement(num_nodes=2), engine)
    assert f"node_rank 1: {engine} runs on one node" in refusal(Placement(node_rank=1), engine)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(
    ("placement", "gpus", "says"),
    [
        (Placement(node_rank=1), 0, "node_rank 1 is not below num_nodes 1"),
        (Placement(num_nodes=2, node_rank=2, leader_addr="a:1"), 0, "node_rank 2 is not below num_nodes 2"),
        (Placement(num_nodes=2), 0, "num_nodes 2 needs leader_addr"),
        (Placement(num_nodes=2, leader_addr="a"), 0, "leader_addr 'a' is no address"),
        (Placement(num_nodes=2, leader_addr="a:70000"), 0, "leader_addr 'a:70000' is no address"),
        (Placement(num_nodes=2, leader_addr="tcp://a:1"), 0, "is no address"),
        (Placement(4), 2, "tensor_parallel_size 4 needs 4 GPUs, and resources.gpu is 2"),
        (Placement(2, 1), 2, "tensor_parallel_size 2 from base_gpu_id 1 needs 3 GPUs, and resources.gpu is 2"),
    ],
)
def test_conflicts_are_named(placement: Placement, gpus: int, says: str) -> None:
    assert says in refusal(placement, gpus=gpus)


@pytest.mark.usefixtures("able")
def test_what_an_engine_can_use_reaches_it() -> None:
    graph = build(run("in=http", "--tensor-parallel-size=8", "--base-gpu-id=2", *LEADER))
    settings = WorkerSettings(**graph.services["Worker"].config)
    assert settings.placement == Placement(8, 2, 2, 0, "10.0.0.1:5000")
    options = settings.options()
    assert (options.tensor_parallel_size, options.base_gpu_id) == (8, 2)
    assert (options.num_nodes, options.node_rank, options.leader_addr) == (2, 0, "10.0.0.1:5000")
    Placement(2, 1).check("mocker", str, 3)
    Placement(16, 0, 2, 1, "[::1]:5000").check("mocker", str, 8)


@pytest.mark.usefixtures("able")
def test_in_none_is_for_followers() -> None:
    follower = build(run("in=none", "--node-rank=1", *LEADER))
    assert follower.services.keys() == {"Worker"}
    for words in (("in=none",), ("in=none", *LEADER), ("in=http", "--node-rank=1", *LEADER)):
        with pytest.raises(UserError, match="in=none is for the nodes with --node-rank 1"):
            build(run(*words))


@pytest.mark.usefixtures("able")
def test_two_spellings_of_the_leader_must_match() -> None:
    same = run("in=http", *LEADER, "--dist-init-addr=10.0.0.1:5000")
    assert same.flags.leader_addr == "10.0.0.1:5000"
    with pytest.raises(UserError, match="--leader-addr and --dist-init-addr must match"):
        run("in=http", *LEADER, "--dist-init-addr=10.0.0.2:5000")


@given(
    st.builds(Placement, *[st.integers(0, 9)] * 4, st.text(max_size=12)), st.sampled_from([*ENGINES]), st.integers(0, 9)
)
def test_anything_is_taken_or_refused(placement: Placement, engine: str, gpus: int) -> None:
    with suppress(UserError):
        placement.check(engine, str, gpus)


def test_the_flags_are_named_as_they_were_typed() -> None:
    arguments: Any = run("in=http", "--base-gpu-id=1")
    with pytest.raises(UserError, match="--base-gpu-id 1: mocker chooses its devices itself"):
        build(arguments)
