"""The laws of models on demand, by random sequences of events, and single decisions."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.on_demand.settings import Budget, ModelSettings
from dynamod.features.on_demand.state import Start

from .world import World, model

NAMES = ("a", "b", "c", "d", "e")
GROUPS = st.sampled_from([(), ("x",), ("y",), ("x", "y")])
MODELS = st.fixed_dictionaries(
    {
        name: st.builds(
            model,
            ttl=st.sampled_from([None, 0, 3]),
            concurrency=st.sampled_from([None, 1, 2]),
            memory=st.integers(1, 4),
            groups=GROUPS,
            preload=st.booleans(),
            load_timeout=st.sampled_from([2, 1800]),
        )
        for name in NAMES
    }
)
BUDGETS = st.builds(
    Budget,
    models=st.sampled_from([None, 1, 2, 3]),
    memory=st.sampled_from([None, 4, 6]),
    patience=st.sampled_from([0.0, 2.0]),
)
KINDS = ["come", "come", "come", "keep", "end", "ready", "gone", "fail", "lost", "load", "unload", "time"]
STEPS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 9)),
    max_size=60,
)


def step(world: World, kind: str, number: int) -> None:
    def one(of: set[str]) -> str | None:
        return sorted(of)[number % len(of)] if of else None

    def on(of: set[str], do: Callable[[str], None]) -> None:
        if (chosen := one(of)) is not None:
            do(chosen)

    name, now = NAMES[number % len(NAMES)], world.now
    match kind:
        case "come":
            world.come(name)
        case "keep":
            world.come(name, [-1.0, 0.0, 2.0][number % 3])
        case "end":
            on(set(world.running) | set(world.waiting), world.end)
        case "ready":
            on(world.loading, world.ready)
        case "gone":
            on(world.draining, world.gone)
        case "fail":
            on(world.loading, world.fail)
        case "lost" if name in world.loaded:
            world.loaded.discard(name)
            world.loading.add(name)
            world.act(world.core.lost(now, name))
        case "load":
            world.act(world.core.load(now, name))
        case "unload":
            world.act(world.core.unload(now, name))
        case "time":
            world.pass_time(number / 2)
        case _:
            pass


@given(MODELS, BUDGETS, STEPS)
def test_the_laws_hold_and_everything_ends(
    models: dict[str, ModelSettings], budget: Budget, steps: list[tuple[str, int]]
) -> None:
    world = World(models, budget)
    world.act(world.core.preload(world.now))
    for kind, number in steps:
        step(world, kind, number)
    for _ in range(40):
        world.settle()
    world.pass_time(1000.0)
    for _ in range(20):
        world.settle()
    assert not world.running
    assert not world.waiting
    assert not world.loading
    assert not world.draining
    kept = {name for name in world.loaded if world.core.models[name].keep is not None}
    assert not kept, "idle for longer than its ttl"


@given(MODELS, BUDGETS, STEPS)
def test_all_loads_fail_and_nobody_waits_for_ever(
    models: dict[str, ModelSettings], budget: Budget, steps: list[tuple[str, int]]
) -> None:
    world = World(models, budget)
    for kind, number in steps:
        if kind not in ("ready", "load"):
            step(world, kind, number)
    for _ in range(40):
        world.settle(fail=True)
        world.pass_time(600.0)
    assert not world.running
    assert not world.waiting
    before = len([one for one in world.done if isinstance(one, Start)])
    world.pass_time(10_000.0)
    assert len([one for one in world.done if isinstance(one, Start)]) == before, "nobody has asked"


@given(BUDGETS, st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), st.integers(1, 4))
def test_a_model_gets_its_turn_although_others_stay_busy(budget: Budget, asked: list[str], length: int) -> None:
    """Requests for two models come each second and overlap; those for others are not put off for ever."""
    world = World({name: model(memory=2) for name in NAMES}, budget)
    late = set[str]()
    ends: list[tuple[float, str]] = []
    for _ in range(60):
        ends += [(world.now + length, world.come(name)) for name in ("a", "b")]
        if world.now == 10.0:
            late = {world.come(name) for name in asked}
        for request in [one for when, one in ends if when <= world.now]:
            if request in world.running:
                world.end(request)
        for name in sorted(world.draining):
            world.gone(name)
        for name in sorted(world.loading):
            world.ready(name)
        for request in late & world.running.keys():
            world.end(request)
        world.pass_time(1.0)
    assert late
    assert not late & world.waiting.keys()


def test_an_idle_model_goes_for_one_that_is_asked_for() -> None:
    world = World({"a": model(), "b": model()}, Budget(models=1))
    first = world.come("a")
    world.ready("a")
    second = world.come("b")
    assert world.waiting == {second: "b"}
    world.end(first)
    assert world.draining == {"a"}
    world.gone("a")
    world.ready("b")
    assert world.running == {second: "b"}


def test_who_was_used_longest_ago_goes_first() -> None:
    world = World({name: model() for name in "abc"}, Budget(models=2))
    for name in "ab":
        request = world.come(name)
        world.ready(name)
        world.pass_time(1.0)
        world.end(request)
    world.come("c")
    assert world.draining == {"a"}


def test_new_requests_wait_behind_who_has_waited_long_enough() -> None:
    world = World({"a": model(), "b": model()}, Budget(models=1, patience=5.0))
    first = world.come("a")
    world.ready("a")
    world.come("b")
    assert world.come("a") in world.running
    world.pass_time(5.0)
    late = world.come("a")
    assert late in world.waiting
    for request in sorted(world.running):
        world.end(request)
    world.gone("a")
    assert world.loading == {"b"}
    assert first not in world.running
    world.settle()
    world.settle()
    assert world.loaded == {"a"}
    assert late not in world.waiting


def test_all_who_waited_have_their_turn_before_the_next_model() -> None:
    world = World({"a": model(concurrency=1), "b": model()}, Budget(models=1, patience=0.0))
    first = [world.come("a") for _ in range(3)]
    other = world.come("b")
    world.ready("a")
    world.pass_time(1.0)
    later = world.come("a")
    for request in first:
        assert set(world.running) == {request}
        world.pass_time(10.0)
        assert not world.draining
        world.end(request)
    assert later in world.waiting
    world.gone("a")
    world.ready("b")
    assert set(world.running) == {other}


def test_who_came_before_is_not_overtaken_by_a_swap() -> None:
    world = World({"a": model(concurrency=1), "b": model()}, Budget(models=1, patience=0.0))
    first = world.come("a")
    world.ready("a")
    second = world.come("a")
    world.pass_time(1.0)
    other = world.come("b")
    world.pass_time(1.0)
    third = world.come("a")
    world.end(first)
    assert set(world.running) == {second}
    world.end(second)
    world.gone("a")
    world.ready("b")
    assert (set(world.running), set(world.waiting)) == ({other}, {third})


def test_who_does_not_decide_admits_only() -> None:
    world = World({"a": model(ttl=1), "b": model(preload=True)}, Budget(models=1))
    world.core.decides = False
    world.act(world.core.preload(world.now))
    first, second = world.come("a"), world.come("b")
    assert not world.there
    world.loaded.add("a")
    world.act(world.core.ready(world.now, "a"))  # by whoever decides
    assert set(world.running) == {first}
    world.end(first)
    world.pass_time(1000.0)
    assert (world.loaded, second in world.waiting) == ({"a"}, True)
    world.core.decides = True
    world.pass_time(0.0)
    assert world.draining == {"a"}


def test_who_has_left_is_not_made_room_for() -> None:
    world = World({"a": model(), "b": model()}, Budget(models=1, patience=0.0))
    world.come("a")
    world.ready("a")
    gone = world.come("b")
    held = world.come("a")
    assert held in world.waiting
    world.end(gone)
    assert held in world.running


def test_a_failed_load_is_said_and_not_tried_at_once() -> None:
    world = World({"a": model()}, Budget())
    world.come("a")
    world.fail("a")
    assert world.refused[0].why == "no such file"
    assert 4.0 <= world.refused[0].retry_after <= 6.0
    world.gone("a")
    world.come("a")
    assert len(world.refused) == 2
    world.pass_time(10.0)
    world.come("a")
    assert world.loading == {"a"}
    world.fail("a")
    assert world.refused[-1].retry_after > 7.0
    world.gone("a")
    world.act(world.core.load(world.now, "a"))
    assert world.loading == {"a"}, "a person need not wait"


def test_a_load_that_takes_too_long_has_failed() -> None:
    world = World({"a": model(load_timeout="1m"), "b": model()}, Budget(models=1))
    world.come("a")
    second = world.come("b")
    world.pass_time(59.0)
    assert world.loading == {"a"}
    world.pass_time(1.0)
    assert world.refused[0].why == "it was not ready within 60 s"
    assert world.draining == {"a"}
    world.gone("a")
    assert world.loading == {"b"}
    world.ready("b")
    assert second in world.running


def test_keep_alive_of_a_request() -> None:
    world = World({"a": model(ttl="5m")}, Budget())
    request = world.come("a", 0.0)
    world.ready("a")
    world.end(request)
    assert world.draining == {"a"}
    world.gone("a")
    request = world.come("a", -1.0)
    world.ready("a")
    world.end(request)
    world.pass_time(10_000.0)
    assert world.loaded == {"a"}
    world.end(world.come("a"))
    world.pass_time(299.0)
    assert world.loaded == {"a"}
    world.pass_time(1.0)
    assert world.draining == {"a"}


def test_unloading_by_hand_waits_for_running_requests() -> None:
    world = World({"a": model()}, Budget())
    assert world.core.unload(0.0, "a") == []
    request = world.come("a")
    assert world.core.unload(0.0, "a") is None, "it is waited for"
    world.ready("a")
    world.act(world.core.unload(0.0, "a"))
    assert world.loaded == {"a"}
    world.end(request)
    assert world.draining == {"a"}


def test_groups_that_may_not_run_together() -> None:
    world = World({"a": model(groups=("x",)), "b": model(groups=("y",)), "c": model()}, Budget())
    for name in "ac":
        world.end(world.come(name))
        world.ready(name)
    world.come("b")
    assert world.draining == {"a"}
    assert world.loaded == {"c"}


def test_memory_is_measured_where_it_is_not_configured() -> None:
    budget = Budget(memory=10)
    world = World({"a": model(), "b": model(memory=4), "c": model()}, budget)
    for name, memory in (("a", 7), ("b", 9), ("c", 99)):
        world.core.measured(name, memory)
    assert [one.memory for one in world.core.models.values()] == [7, 4, 10]
    world.end(world.come("a"))
    world.ready("a")
    world.come("b")
    assert world.draining == {"a"}
    world.gone("a")
    world.core.measured("a", 6)
    world.ready("b")
    world.come("a")
    assert world.loading == {"a"}, "it takes less than was thought"


def test_estimates_come_from_the_last_load() -> None:
    world = World({"a": model(), "b": model()}, Budget(models=1, patience=5.0))
    assert world.core.estimate(0.0, "a") == 1.0
    request = world.come("a")
    world.pass_time(20.0)
    assert world.core.estimate(world.now, "a") == 20.0, "as long as it takes so far"
    world.ready("a")
    world.end(request)
    world.act(world.core.unload(world.now, "a"))
    world.gone("a")
    world.come("a")
    world.pass_time(8.0)
    assert world.core.estimate(world.now, "a") == 12.0
    assert world.core.estimate(world.now, "b") == 20.0, "never loaded: as long as another"
