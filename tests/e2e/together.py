"""Tests that mostly wait (for a backoff, a lease, a slow stream) are played at the same time.

Each has a machine of its own, and servers of its own if it asks for them, and is reported as itself. All that were
chosen of a module are over before its next test begins, so nothing else is measured beside them.
"""

import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from .nodes import Servers

WIDTH = 3
"""How many at the same time: two cores carry that, for each works about half of its time."""
LIMIT = 120.0
"""Seconds for one; every wait in it has a deadline of its own."""


def together(scenario: Callable[..., None]) -> Callable[..., None]:
    """Make a test of a function of `machine`, maybe `servers`, and what it is parametrized by."""
    own = [one for one in inspect.signature(scenario).parameters.values() if one.name not in ("machine", "servers")]

    def test(**given: Any) -> None:
        given["played"][given["request"].node.nodeid].result(LIMIT)

    test.__name__ = test.__qualname__ = scenario.__name__
    test.__doc__, test.__module__ = scenario.__doc__, scenario.__module__
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter(name, kind) for name in ("request", "played", *[one.name for one in own])]
    test.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    test.scenario = scenario  # type: ignore[attr-defined]
    return test


def play(request: pytest.FixtureRequest, machine: Callable[[], Any]) -> dict[str, "Future[None]"]:
    """Play what was chosen of the module, to the end; by the tests' ids."""
    with ThreadPoolExecutor(WIDTH) as pool:
        over = {
            item.nodeid: pool.submit(_one, item, machine)
            for item in request.session.items
            if isinstance(item, pytest.Function) and item.path == request.path and hasattr(item.obj, "scenario")
        }
        wait(over.values())
    return over


def _one(item: pytest.Function, make: Callable[[], Any]) -> None:
    scenario = item.obj.scenario
    given = dict(item.callspec.params) if hasattr(item, "callspec") else {}
    machine = make()
    try:
        if "servers" not in inspect.signature(scenario).parameters:
            scenario(machine=machine, **given)
        else:
            servers = Servers(machine)
            try:
                scenario(machine=machine, servers=servers, **given)
            finally:
                servers.down()
    finally:
        machine.close()
