"""Which services share a process."""

from hypothesis import given
from hypothesis import strategies as st

from dynamod.daemon.groups import groups
from dynamod.graph.graph import FRONTEND, EndpointInfo, Graph, ServiceSpec
from dynamod.graph.load import load_graph


def spec(name: str, **fields: object) -> ServiceSpec:
    return ServiceSpec(name=name, path=f"m:{name}", namespace="dynamo", component=name, **fields)  # type: ignore[arg-type]


def graph(*specs: ServiceSpec) -> Graph:
    return Graph(specs[0].name, {one.name: one for one in specs}, "dynamo")


def test_the_shipped_graph_has_an_ingress_and_workers() -> None:
    found = groups(load_graph("graphs.agg:Frontend", "configs/agg.yaml", overrides=["--Worker.ServiceArgs.workers=3"]))
    shape = {group.name: ([one.name for one in group.services], group.replicas) for group in found}
    assert shape == {"Worker": (["Worker"], 3), "ingress": (["Processor", "Frontend"], 1)}
    listener = next(group.listener() for group in found if group.name == "ingress")
    assert listener is not None
    assert (listener[0].name, listener[1], listener[2]) == ("Frontend", ("localhost",), 8000)


def test_a_group_of_one_has_its_name() -> None:
    (only,) = groups(graph(spec("Front", placement="ingress", component_kind=FRONTEND, config={"port": 1})))
    assert only.name == "Front"
    assert only.listener() == (only.services[0], ("localhost",), 1)


def test_two_that_listen_live_apart() -> None:
    api = {"generate": EndpointInfo("generate", "generate", ("http",))}
    found = groups(
        graph(
            spec("Root", placement="ingress", endpoints=api, config={"port": 1}),
            spec("Other", placement="ingress", endpoints=api, config={"port": 2}),
        )
    )
    assert sorted([one.name for one in group.services] for group in found) == [["Other"], ["Root"]]
    listeners = [group.listener() for group in found]
    assert sorted(listener[2] for listener in listeners if listener is not None) == [1, 2]


services = st.lists(
    st.tuples(st.sampled_from(["own", "ingress"]), st.integers(1, 4), st.integers(0, 2), st.booleans(), st.booleans()),
    min_size=1,
    max_size=6,
)


@given(services)
def test_each_enabled_service_is_in_exactly_one_group(drawn: list[tuple[str, int, int, bool, bool]]) -> None:
    specs = [
        spec(
            f"S{number}",
            placement=placement,
            workers=workers,
            resources={"gpu": gpus} if placement == "own" else {},
            enabled=enabled,
            component_kind=FRONTEND if listens else "m:Actor",
            config={"port": number},
        )
        for number, (placement, workers, gpus, enabled, listens) in enumerate(drawn)
    ]
    found = groups(graph(*specs))
    names = [one.name for group in found for one in group.services]
    assert sorted(names) == sorted(one.name for one in specs if one.enabled)
    assert len({group.name for group in found}) == len(found), "process names are unique"
    for group in found:
        assert group.replicas >= 1
        assert sum(one.component_kind == FRONTEND for one in group.services) <= 1, "one door per process"
        if any(one.placement == "own" for one in group.services):
            (one,) = group.services
            assert (group.replicas, group.gpus) == (one.workers, one.gpus)
