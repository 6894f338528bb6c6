"""Whether a proposal is done, and with which processes: pure, so pools and time are made up."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.pools import Pool, Replica
from dynamod.planner.observation import WorkerLoad
from dynamod.planner.reconcile import ATTEMPTS, BACKOFF, LONGEST, Action, Reconciler, starting
from dynamod.planner.settings import PlannerSettings

FAR = 100
"""Leases of workers on other nodes begin here."""


def pool(*states: str, free: int | None = None, **of_all: Any) -> Pool:
    """Replicas 0, 1, ... in these states; the lease of a replica is its number + 1."""
    made = [Replica(replica=n, state=state, lease=n + 1, **of_all) for n, state in enumerate(states)]
    return Pool(replicas=tuple(made), free=free)


def loads(*leases: int, context: int = 0) -> dict[int, WorkerLoad]:
    return {lease: WorkerLoad(context=context) for lease in leases}


def reconciler(**settings: Any) -> Reconciler:
    return Reconciler(PlannerSettings(**settings))


def test_more_are_started_and_those_that_start_count() -> None:
    one = reconciler()
    assert one.decide(0, 3, pool("Ready"), loads(1)) == Action(replicas=3)
    assert one.decide(5, 3, pool("Ready", "Starting", "Starting"), loads(1)) == Action()
    assert one.decide(10, 4, pool("Ready", "Starting", "Starting"), loads(1)) == Action(replicas=4)


def test_workers_that_are_not_known_yet_are_not_given_up() -> None:
    """Ready for the daemon, not in the registry; or silent for a while; or started again."""
    one = reconciler()
    for state in ("Ready", "Silent", "Restarting"):
        there = pool("Ready", state)
        assert starting(there, [1]) == 1
        assert one.decide(0, 2, there, loads(1)) == Action()


def test_the_least_loaded_go_and_those_first_that_are_not_ready() -> None:
    one = reconciler()
    there = {1: WorkerLoad(context=500), 2: WorkerLoad(context=10), 3: WorkerLoad(queued_prefill=900)}
    four = pool("Ready", "Ready", "Ready", "Starting")
    one.decide(0, 4, four, there)
    assert one.decide(5, 2, four, there) == Action(replicas=2, leave=(3, 1))


def test_nothing_goes_when_the_number_of_ready_workers_has_just_changed() -> None:
    one = reconciler()
    three = pool("Ready", "Ready", "Ready")
    one.decide(0, 3, three, loads(1, 2))
    assert one.decide(5, 2, three, loads(1, 2, 3)) == Action(refused="worker_count_mismatch")
    assert one.decide(10, 2, three, loads(1, 2, 3)).replicas == 2


def test_one_change_at_a_time() -> None:
    one = reconciler()
    one.in_progress = True
    assert one.decide(0, 3, pool("Ready"), loads(1)) == Action(refused="scaling_in_progress")
    assert one.decide(5, 1, pool("Ready"), loads(1)) == Action()


@pytest.mark.parametrize("name", ["no_operation", "advisory"])
def test_it_only_says_what_it_would_do(name: str) -> None:
    assert reconciler(**{name: True}).decide(0, 3, pool("Ready"), loads(1)) == Action(refused="disabled")


def test_a_pause_and_a_number_that_somebody_else_has_set() -> None:
    one = reconciler()
    one.paused = True
    assert one.decide(0, 3, pool("Ready"), loads(1)) == Action(refused="paused")
    one.resume()
    one.decide(5, 1, pool("Ready"), loads(1))
    three = pool("Ready", "Ready", "Ready")
    assert one.decide(10, 1, three, loads(1, 2, 3)) == Action(refused="manual")
    assert one.decide(15, 1, three, loads(1, 2, 3)) == Action(refused="manual")
    one.resume()
    assert one.decide(20, 1, three, loads(1, 2, 3)).replicas == 1


def test_workers_of_other_nodes_count_and_are_left_alone() -> None:
    one = reconciler()
    far = loads(FAR, FAR + 1)
    assert one.decide(0, 4, pool("Ready"), loads(1) | far) == Action(replicas=2)
    one.resume()
    assert one.decide(5, 1, pool("Ready"), loads(1) | far) == Action(replicas=0, leave=(0,))


def test_devices_bound_it() -> None:
    one = reconciler()
    assert one.decide(0, 5, pool("Ready", free=2), loads(1)) == Action(replicas=3, refused="no_devices")
    one.resume()
    assert one.decide(5, 5, pool("Ready", free=0), loads(1)) == Action(refused="no_devices")


def test_workers_that_never_become_ready_are_tried_more_and_more_seldom_and_then_not_any_more() -> None:
    one, now, waits = reconciler(), 0.0, []
    one.decide(now, 1, pool("Ready"), loads(1))
    for _ in range(ATTEMPTS):
        found = one.decide(now, 2, pool("Ready"), loads(1))
        assert found == Action(replicas=2)
        now += 60
        given_up = one.decide(now, 2, pool("Ready", "Fatal"), loads(1))
        assert given_up == Action(replicas=1, leave=(1,), refused="workers_fail")
        since = now
        while one.decide(now, 2, pool("Ready"), loads(1)) == Action(refused="workers_fail") and now < since + 3600:
            now += 1
        waits.append(now - since)
        one.failed_to_scale()  # the last look has ordered one; it is asked for again above
    assert waits[:-1] == [min(LONGEST, BACKOFF * 2**n) for n in range(ATTEMPTS - 1)]
    assert waits[-1] == 3600
    one.resume()
    assert one.decide(now, 2, pool("Ready"), loads(1)) == Action(replicas=2)


def test_a_worker_that_becomes_ready_ends_the_backoff() -> None:
    one = reconciler()
    one.decide(0, 2, pool("Ready", "Fatal"), loads(1))
    one.came_up()
    assert one.decide(1, 2, pool("Ready"), loads(1)) == Action(replicas=2)


STATES = st.sampled_from(["Ready", "Starting", "Restarting", "Silent", "Fatal", "Draining"])


@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.lists(STATES, max_size=6),
            st.sets(st.sampled_from([1, 2, 3, FAR]), max_size=4),
            st.none() | st.integers(0, 3),
        ),
        max_size=12,
    )
)
def test_it_never_goes_beyond_what_is_proposed_or_free(ticks: list[Any]) -> None:
    one = reconciler()
    for now, (target, states, ready, free) in enumerate(ticks):
        there = pool(*states, free=free)
        action = one.decide(5.0 * now, target, there, loads(*ready))
        if action.replicas is None:
            assert action.leave == ()
            continue
        assert action.replicas >= 0
        if action.replicas > there.wanted:
            assert action.replicas <= target
            assert free is None or action.replicas <= there.wanted + free
            assert action.leave == ()
        else:
            assert len(action.leave) == there.wanted - action.replicas
            assert set(action.leave) <= {replica.replica for replica in there.replicas if replica.state != "Draining"}
