"""Which actor runs a service."""

import pytest

from dynamod.actor import Actor
from dynamod.graph.load import load_graph
from dynamod.message.errors import UserError
from dynamod.runtime.components import COMPONENTS, component_class


def test_the_shipped_services_name_kinds_that_are_known() -> None:
    graphs = [load_graph("graphs.agg:Frontend"), load_graph(None, "configs/models.yaml")]
    assert {spec.component_kind for graph in graphs for spec in graph.services.values()} == {*COMPONENTS, "ondemand"}


@pytest.mark.parametrize("kind", COMPONENTS)
def test_a_kind_is_an_actor(kind: str) -> None:
    found = component_class(kind)
    assert isinstance(found, type)
    assert issubclass(found, Actor)


def test_a_user_names_an_actor_in_full() -> None:
    assert component_class("dynamod.actor:Actor") is Actor


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("wroker", "known kinds: frontend, processor, worker"),
        ("no_such_module:Actor", "no_such_module"),
        ("dynamod.actor:NoSuchClass", "NoSuchClass"),
    ],
)
def test_an_actor_that_is_not_there_is_the_users_error(kind: str, says: str) -> None:
    with pytest.raises(UserError) as raised:
        component_class(kind)
    assert says in raised.value.line()
