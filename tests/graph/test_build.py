from hypothesis import given
from hypothesis import strategies as st

from dynamod.graph.build import Node, topology
from dynamod.graph.describe import describe
from dynamod.graph.document import Document
from dynamod.graph.graph import Graph
from dynamod.graph.service import Links, Service, collecting, depends, endpoint, service

N = 5


def build_graph(root: Service, links: Links) -> Graph:
    """The graph of services at hand."""
    nodes = {one: Node(one.name, one) for edge in [(root, root), *links] for one in edge}
    edges = [(nodes[a], nodes[b]) for a, b in links]
    return describe(topology(nodes[root], [], edges, lambda wish: wish.on), Document(), None, (), root.name)


def services(wishes):
    """N services; `wishes[i]` are the numbers that service i depends on (only lower ones, the others as links)."""
    made = []
    for index in range(N):
        body = {f"d{j}": depends(made[j]) for j in wishes[index] if j < index}
        made.append(service(type(f"S{index}", (), body)))
    return made


def naive(wishes, edges, root):
    """The rule in the plainest words: nodes and kept depends."""
    linked = {root} | {node for edge in edges for node in edge}
    kept = {i: {j for j in wishes[i] if j < i and (not edges or j in linked)} for i in range(N)}
    nodes = {root}
    while True:
        more = nodes | {b for a, b in edges if a in nodes} | {j for i in nodes for j in kept[i]}
        if more == nodes:
            return nodes, {i: kept[i] for i in nodes}
        nodes = more


@given(
    st.lists(st.sets(st.integers(0, N - 1)), min_size=N, max_size=N),
    st.lists(st.tuples(st.integers(0, N - 1), st.integers(0, N - 1)), max_size=6),
    st.integers(0, N - 1),
)
def test_pruning_is_the_naive_rule(wishes, edges, root):
    made = services(wishes)
    with collecting() as links:
        for a, b in edges:
            assert made[a].link(made[b]) is made[b]
    graph = build_graph(made[root], links)
    nodes, kept = naive(wishes, edges, root)
    assert {int(name[1]) for name in graph.services} == nodes
    assert next(iter(graph.services)) == f"S{root}"
    for index in nodes:
        found = {int(info.service[1]) for info in graph.services[f"S{index}"].depends.values()}
        assert found == kept[index]
    order = [spec.name for spec in graph.start_order()]
    assert sorted(order) == sorted(graph.services)
    assert build_graph(made[root], links) == graph
    if not edges:  # no cycles then: who is depended on starts first
        for name, spec in graph.services.items():
            assert all(order.index(info.service) < order.index(name) for info in spec.depends.values())


@service
class Low:
    @endpoint()
    async def run(self, request):
        yield request


@service
class Top:
    low = depends(Low)


def test_links_belong_to_the_block_that_collects_them():
    assert Top.link(Low) is Low, "outside a load it has no effect"
    with collecting() as links:
        assert set(build_graph(Top, links).services) == {"Top", "Low"}
        Top.link(Top)
        Top.link(Top)
        assert links == [(Top, Top)]
        assert set(build_graph(Top, links).services) == {"Top"}
