"""Kinds of components that a feature adds to graphs."""

import msgspec
import pytest

from dynamod.actor import Actor
from dynamod.cli.preflight import check
from dynamod.extension import installed
from dynamod.extension.component import Component
from dynamod.extension.feature import Feature
from dynamod.graph.graph import Graph, ServiceSpec
from dynamod.graph.service import Service, service
from dynamod.ingress.settings import ProcessorSettings
from dynamod.message.errors import UserError
from dynamod.runtime.components import component_class, is_ingress, starts_workers


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of the toy."""

    most: int = 3


class Toy(Actor):
    """Runs the service."""


def wrong(settings: Settings, spec: ServiceSpec, graph: Graph) -> None:
    if settings.most > len(graph.services):
        raise UserError(f"{spec.name}.most is {settings.most}")


TOY = Feature("toy", "", components={"counter": Component(lambda: Toy, lambda: Settings, wrong)})


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed", lambda: {"toy": TOY})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)


def counter() -> Service[object]:
    @service(dynamo={"namespace": "n"}, actor="counter")
    class Counter:
        """Of a graph."""

    return Counter  # type: ignore[return-value]


def graph(kind: str = "counter", **config: object) -> Graph:
    return Graph(
        "Counter",
        {"Counter": ServiceSpec("Counter", "m:Counter", "n", "Counter", component_kind=kind, config=config)},
        "n",
    )


def test_a_service_names_the_kind_alone() -> None:
    assert counter().config_model is Settings
    assert component_class("counter") is Toy


def test_a_model_of_the_service_itself_comes_first() -> None:
    class Own(Settings, frozen=True):
        """With more than the kind's."""

    assert service(config=Own, actor="counter")(type("Counter", (), {})).config_model is Own


def test_the_section_is_checked_before_a_start() -> None:
    assert check(graph(most=1))
    with pytest.raises(UserError, match=r"^Counter\.most is 3$"):
        check(graph())
    with pytest.raises(UserError, match=r"^Counter\.least: unknown key"):
        check(graph(least=1))


def test_a_kind_of_a_feature_that_is_off_names_component_and_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMOD_FEATURES", "-toy")
    assert counter().config_model is None, "the graph file may be imported for its other services"
    says = "the component kind 'counter' belongs to the feature 'toy', which is off: switched off by DYNAMOD_FEATURES"
    with pytest.raises(UserError) as caught:
        check(graph())
    assert caught.value.line() == f"Counter: {says}; see dynamo features"
    with pytest.raises(UserError, match=says):
        component_class("counter")


def test_a_kind_that_no_feature_has_is_unknown() -> None:
    with pytest.raises(UserError) as caught:
        check(graph("conuter"))
    assert caught.value.line().startswith("Counter: no component of kind 'conuter'; known kinds: ")
    assert caught.value.line().endswith("counter; or module:Class")


def test_an_actor_of_the_user_is_not_imported_before_a_start() -> None:
    assert check(graph("no_such_module:Actor"))


class IngressSettings(ProcessorSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of a toy that takes the requests of clients."""

    started: tuple[str, ...] = ()


def test_a_kind_may_take_requests_and_start_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = Component(lambda: Toy, lambda: IngressSettings, ingress=True, starts=lambda found: (found.started, 1))
    toy = Feature("toy", "", components={"counter": TOY.components["counter"], "opener": kind})
    monkeypatch.setattr(installed, "installed", lambda: {"toy": toy})
    assert (is_ingress("opener"), starts_workers("opener")) == (True, True)
    assert (is_ingress("counter"), starts_workers("counter")) == (False, False)
    assert is_ingress("processor")
    assert not starts_workers("worker")
    check(graph("opener", started=["Worker"]), {})
    with pytest.raises(
        UserError, match="DYN_MIGRATION_LIMIT is"
    ):  # settings of the environment, as a processor has them
        check(graph("opener"), {"DYN_MIGRATION_LIMIT": "wrong"})
    monkeypatch.setenv("DYNAMOD_FEATURES", "-toy")
    assert is_ingress("opener"), "a daemon knows it of graphs that were started before"
