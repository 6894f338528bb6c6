"""The planner as a component of graphs."""

import pytest

from dynamod.cli.preflight import check
from dynamod.features.planner.actor import PlannerComponent
from dynamod.features.planner.settings import PlannerSettings
from dynamod.graph.load import load_graph, load_service
from dynamod.message.errors import UserError
from dynamod.runtime.components import component_class


@pytest.mark.parametrize("name", ["agg_planner", "disagg_planner"])
def test_the_shipped_graphs_have_it(name: str) -> None:
    spec = load_graph(f"graphs.{name}:Frontend").services["Planner"]
    assert component_class(spec.component_kind) is PlannerComponent
    assert load_service(spec).config_model is PlannerSettings


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--Planner.prefill-min-endpoint=2", "--Planner.decode-min-endpoint=2"), "2 of Worker and 2 of PrefillWorker"),
        (("--Worker.ServiceArgs.resources.gpu=3",), "1 of Worker with 3 GPUs each and 1 of PrefillWorker"),
    ],
)
def test_the_least_of_the_pools_is_within_the_budget(flags: tuple[str, ...], says: str) -> None:
    words = ["--Planner.max-gpu-budget=3", *flags]
    graph = load_graph("graphs.disagg_planner:Frontend", "configs/disagg_planner.yaml", overrides=words)
    with pytest.raises(UserError) as caught:
        check(graph)
    assert caught.value.line().startswith(f"Planner: min-endpoint asks for {says}, above max-gpu-budget 3; ")
