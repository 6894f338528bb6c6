"""Wrong settings of models on demand are refused with the key."""

from typing import Any

import pytest

from dynamod.features.on_demand.settings import budget_of, duration, models_of, names_of
from dynamod.message.errors import UserError

ENTRY = {"component": "Worker"}


@pytest.mark.parametrize(
    ("models", "budget", "said"),
    [
        ({"a": {"ttl": -1}}, {}, "models.a.ttl is -1"),
        ({"a": {"ttl": "soon"}}, {}, "models.a.ttl: 'soon' is no time"),
        ({"a": {"ttl": "-5m"}}, {}, "models.a.ttl is -300"),
        ({"a": {"load_timeout": "x"}}, {}, "models.a.load_timeout: 'x' is no time"),
        ({"a": {"load_timeout": 0}}, {}, "models.a.load_timeout is 0"),
        ({"a": {"tll": 5}}, {}, "models.a.tll: unknown key"),
        ({"a": {"concurrency": 0}}, {}, "models.a.concurrency"),
        ({"a": {"aliases": ["a"]}}, {}, "models.a.aliases: 'a' is the name of a model already"),
        ({"a": {"aliases": ["b"]}, "b": {"aliases": ["a"]}}, {}, "models.a.aliases: 'b' is the name of a model"),
        ({"a": {"aliases": ["x"]}, "b": {"aliases": ["x"]}}, {}, "models.b.aliases: 'x' is an alias of 'a' already"),
        ({"a": {"aliases": [""]}}, {}, "models.a.aliases: an alias is empty"),
        ({"a": {}}, {"models": 0}, "budget.models is 0"),
        ({"a": {}}, {"modles": 1}, "budget.modles: unknown key"),
        ({"a": {}}, {"patience": -1}, "budget.patience"),
        ({"a": {}}, {"memory": "many"}, "budget.memory: 'many' is no size"),
        ({"a": {"memory": "2GiB"}}, {"memory": "1GiB"}, "budget.memory is 1073741824 bytes, below the 2147483648"),
        ({"a": {"preload": True}, "b": {"preload": True}}, {"models": 1}, "budget.models is 1, below the models with"),
        ({"a": None}, {}, "models.a: expected a mapping"),
    ],
)
def test_mistakes_are_refused_with_their_key(models: dict[str, Any], budget: dict[str, Any], said: str) -> None:
    entries = {name: one if one is None else {**ENTRY, **one} for name, one in models.items()}
    with pytest.raises(UserError) as caught:
        budget_of(budget, models_of(entries))
    assert said in caught.value.line()


def test_what_is_read() -> None:
    models = models_of({"a": {**ENTRY, "ttl": "5m", "aliases": ["x", "y"], "memory": "1.5GiB"}, "b": ENTRY})
    assert (models["a"].seconds, models["a"].bytes, models["b"].seconds) == (300.0, 3 << 29, None)
    assert names_of(models) == {"a": "a", "b": "b", "x": "a", "y": "a"}
    assert budget_of({"memory": "2GiB", "models": 2}, {"a": models["a"]}).bytes == 1 << 31


@pytest.mark.parametrize(
    ("text", "seconds"), [("300", 300), ("1h30m", 5400), ("250ms", 0.25), (7, 7), ("-1", -1), ("1.5m", 90), ("0", 0)]
)
def test_times(text: str | float, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5 minutes", "m", "5x", "--1"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        duration(text)
