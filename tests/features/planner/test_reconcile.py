"""Whether a proposal is done, and with which processes: pure, so pools and time are made up."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.planner.observation import WorkerLoad
from dynamod.features.planner.reconcile import ATTEMPTS, BACKOFF, LONGEST, Action, Change, Reconciler, starting
from dynamod.features.planner.settings import PlannerSettings
from dynamod.message.pools import Pool, Replica

FAR = 100
"""Leases of workers on other nodes begin here."""


def pool(*states: str, free: int | None = None, **of_all: Any) -> Pool:
    """Replicas 0, 1, ... in these states; the lease of a replica is its number + 1."""
    made = [Replica(replica=n, state=state, lease=n + 1, **of_all) for n, state in enumerate(states)]
    return Pool(replicas=tuple(made), free=free)


def change(replicas: int, *leave: int, refused: Any = "") -> Action:
    return Action(changes={"here": Change(replicas=replicas, leave=leave)}, refused=refused)


def decide(one: Reconciler, now: float, target: int, there: Pool, ready: Any) -> Action:
    """Of a single node."""
    return one.decide(now, target, {"here": there}, ready)


def loads(*leases: int, context: int = 0) -> dict[int, WorkerLoad]:
    return {lease: WorkerLoad(context=context) for lease in leases}


def reconciler(**settings: Any) -> Reconciler:
    return Reconciler(PlannerSettings(**settings))


def test_more_are_started_and_those_that_start_count() -> None:
    one = reconciler()
    assert decide(one, 0, 3, pool("Ready"), loads(1)) == change(3)
    assert decide(one, 5, 3, pool("Ready", "Starting", "Starting"), loads(1)) == Action()
    assert decide(one, 10, 4, pool("Ready", "Starting", "Starting"), loads(1)) == change(4)


def test_workers_that_are_not_known_yet_are_not_given_up() -> None:
    """Ready for the daemon, not in the registry; or silent for a while; or started again."""
    one = reconciler()
    for state in ("Ready", "Silent", "Restarting"):
        there = pool("Ready", state)
        assert starting({"here": there}, [1]) == 1
        assert decide(one, 0, 2, there, loads(1)) == Action()


def test_the_least_loaded_go_and_those_first_that_are_not_ready() -> None:
    one = reconciler()
    there = {1: WorkerLoad(context=500), 2: WorkerLoad(context=10), 3: WorkerLoad(queued_prefill=900)}
    four = pool("Ready", "Ready", "Ready", "Starting")
    decide(one, 0, 4, four, there)
    assert decide(one, 5, 2, four, there) == change(2, 3, 1)


def test_nothing_goes_when_the_number_of_ready_workers_has_just_changed() -> None:
    one = reconciler()
    three = pool("Ready", "Ready", "Ready")
    decide(one, 0, 3, three, loads(1, 2))
    assert decide(one, 5, 2, three, loads(1, 2, 3)) == Action(refused="worker_count_mismatch")
    assert decide(one, 10, 2, three, loads(1, 2, 3)).changes["here"].replicas == 2


def test_one_change_at_a_time() -> None:
    one = reconciler()
    one.in_progress = True
    assert decide(one, 0, 3, pool("Ready"), loads(1)) == Action(refused="scaling_in_progress")
    assert decide(one, 5, 1, pool("Ready"), loads(1)) == Action()


@pytest.mark.parametrize("name", ["no_operation", "advisory"])
def test_it_only_says_what_it_would_do(name: str) -> None:
    assert decide(reconciler(**{name: True}), 0, 3, pool("Ready"), loads(1)) == Action(refused="disabled")


def test_a_pause_and_a_number_that_somebody_else_has_set() -> None:
    one = reconciler()
    one.paused = True
    assert decide(one, 0, 3, pool("Ready"), loads(1)) == Action(refused="paused")
    one.resume()
    decide(one, 5, 1, pool("Ready"), loads(1))
    three = pool("Ready", "Ready", "Ready")
    assert decide(one, 10, 1, three, loads(1, 2, 3)) == Action(refused="manual")
    assert decide(one, 15, 1, three, loads(1, 2, 3)) == Action(refused="manual")
    one.resume()
    assert decide(one, 20, 1, three, loads(1, 2, 3)).changes["here"].replicas == 1


def test_workers_of_other_nodes_count_and_are_left_alone() -> None:
    one = reconciler()
    far = loads(FAR, FAR + 1)
    assert decide(one, 0, 4, pool("Ready"), loads(1) | far) == change(2)
    one.resume()
    assert decide(one, 5, 1, pool("Ready"), loads(1) | far) == change(0, 0)


def test_devices_bound_it() -> None:
    one = reconciler()
    assert decide(one, 0, 5, pool("Ready", free=2), loads(1)) == change(3, refused="no_devices")
    one.resume()
    assert decide(one, 5, 5, pool("Ready", free=0), loads(1)) == Action(refused="no_devices")


def test_workers_that_never_become_ready_are_tried_more_and_more_seldom_and_then_not_any_more() -> None:
    one, now, waits = reconciler(), 0.0, []
    decide(one, now, 1, pool("Ready"), loads(1))
    for _ in range(ATTEMPTS):
        found = decide(one, now, 2, pool("Ready"), loads(1))
        assert found == change(2)
        now += 60
        given_up = decide(one, now, 2, pool("Ready", "Fatal"), loads(1))
        assert given_up == change(1, 1, refused="workers_fail")
        since = now
        while decide(one, now, 2, pool("Ready"), loads(1)) == Action(refused="workers_fail") and now < since + 3600:
            now += 1
        waits.append(now - since)
        one.settled()  # the last look has ordered one; it is asked for again above
    assert waits[:-1] == [min(LONGEST, BACKOFF * 2**n) for n in range(ATTEMPTS - 1)]
    assert waits[-1] == 3600
    one.resume()
    assert decide(one, now, 2, pool("Ready"), loads(1)) == change(2)


def test_a_worker_that_becomes_ready_ends_the_backoff() -> None:
    one = reconciler()
    decide(one, 0, 2, pool("Ready", "Fatal"), loads(1))
    one.came_up()
    assert decide(one, 1, 2, pool("Ready"), loads(1)) == change(2)


def test_a_hold_of_the_planner_before_goes_on_until_resume() -> None:
    one = reconciler()
    for held in ("paused", "manual"):
        one.take_over(held)
        assert (one.held, decide(one, 0, 3, pool("Ready"), loads(1))) == (held, Action(refused=held))
        one.resume()
        one.take_over("")
        assert one.held == ""
    one.paused = True
    one.take_over("manual")
    assert one.held == "paused"


STATES = st.sampled_from(["Ready", "Starting", "Restarting", "Silent", "Fatal", "Draining"])


NODES = st.dictionaries(
    st.sampled_from(["one", "two"]), st.tuples(st.lists(STATES, max_size=5), st.none() | st.integers(0, 3)), min_size=1
)


def several(nodes: dict[str, Any]) -> dict[str, Pool]:
    """Pools by node; leases of each node begin at another number."""
    made = {}
    for first, (node, (states, free)) in enumerate(sorted(nodes.items())):
        there = [Replica(replica=n, state=state, lease=1 + n + 10 * first) for n, state in enumerate(states)]
        made[node] = Pool(replicas=tuple(there), free=free)
    return made


def test_new_ones_go_where_most_devices_are_free() -> None:
    nodes = several({"one": (["Ready"], 1), "two": ([], 3)})
    found = reconciler().decide(0, 5, nodes, loads(1))
    assert found.changes == {"one": Change(replicas=2), "two": Change(replicas=3)}
    even = several({"one": (["Ready"], None), "two": ([], None)})
    assert reconciler().decide(0, 4, even, loads(1)).changes == {"one": Change(replicas=2), "two": Change(replicas=2)}


def test_those_with_least_to_do_go_on_whichever_node_they_are() -> None:
    nodes = several({"one": (["Ready", "Ready"], None), "two": (["Ready"], None)})
    there = {1: WorkerLoad(context=5), 2: WorkerLoad(context=900), 11: WorkerLoad(context=10)}
    found = reconciler().decide(0, 1, nodes, there)
    assert found.changes == {"one": Change(replicas=1, leave=(0,)), "two": Change(replicas=0, leave=(0,))}


def test_a_node_that_comes_or_goes_is_nobodys_hand() -> None:
    one = reconciler()
    both = several({"one": (["Ready"], None), "two": (["Ready"], None)})
    assert one.decide(0, 2, both, loads(1, 11)) == Action()
    assert one.decide(5, 2, {"one": both["one"]}, loads(1)).changes == {"one": Change(replicas=2)}
    one.settled()
    assert one.decide(10, 2, both, loads(1, 11)) == Action()
    assert not one.manual


def test_without_the_other_nodes_nothing_is_changed() -> None:
    alone = Pool(replicas=pool("Ready").replicas, alone=True)
    assert decide(reconciler(), 0, 3, alone, loads(1)) == Action(refused="cluster_lost")


@given(
    st.lists(st.tuples(st.integers(0, 9), NODES, st.sets(st.sampled_from([1, 2, 11, FAR]), max_size=4)), max_size=12)
)
def test_it_never_goes_beyond_what_is_proposed_or_free(ticks: list[Any]) -> None:
    one = reconciler()
    for now, (target, nodes, ready) in enumerate(ticks):
        pools = several(nodes)
        action = one.decide(5.0 * now, target, pools, loads(*ready))
        after = {node: pools[node].wanted for node in pools}
        after |= {node: change.replicas for node, change in action.changes.items()}
        for node, done in action.changes.items():
            there = pools[node]
            assert done.replicas >= 0
            assert there.free is None or done.replicas <= there.wanted + there.free
            assert len(done.leave) == max(0, there.wanted - done.replicas)
            assert set(done.leave) <= {one.replica for one in there.replicas if one.state != "Draining"}
        if any(after[node] > pools[node].wanted for node in pools):
            assert sum(after.values()) <= target


def test_a_worker_that_becomes_ready_on_another_node_ends_the_failures_too() -> None:
    one = reconciler()
    ready, failed = pool("Ready"), pool("Ready", "Fatal")
    for number in range(ATTEMPTS - 1):
        one.decide(number, 2, {"here": ready, "there": failed}, loads(1))
        one.settled()
    assert one.failures == ATTEMPTS - 1
    one.decide(10, 2, {"here": ready, "there": pool("Silent", "Starting")}, loads(1))
    one.decide(11, 2, {"here": ready, "there": pool("Ready", "Starting"), "new": ready}, loads(1))
    assert one.failures == ATTEMPTS - 1, "one was silent, others were ready before they were known"
    one.decide(12, 2, {"here": ready, "there": pool("Ready", "Ready"), "new": ready}, loads(1))
    assert one.failures == 0
    one.failures = 1
    one.decide(13, 3, {"here": ready, "there": pool("Ready", "Ready"), "new": pool("Ready", "Ready")}, loads(1))
    assert one.failures == 0, "between two ticks"


def test_the_order_of_a_planner_that_died_is_nobodys_hand() -> None:
    """It was still under way when its successor looked first. Nodes count what no planner has ordered."""
    one = reconciler()
    three = Pool(replicas=pool("Ready", "Ready", "Ready").replicas, by_hand=1)
    two = Pool(replicas=pool("Ready", "Ready", "Draining").replicas, by_hand=1)
    assert one.decide(0, 3, {"here": three}, loads(1, 2, 3)) == Action()
    assert one.decide(5, 2, {"here": two}, loads(1, 2)) == Action()
    assert not one.manual
    touched = msgspec.structs.replace(two, by_hand=2)
    assert one.decide(10, 2, {"here": touched}, loads(1, 2)) == Action()
    assert one.manual
    one.resume()
    assert one.decide(15, 2, {"here": touched}, loads(1, 2)) == Action()
    assert not one.manual
