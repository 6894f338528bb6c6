"""A feature adds a key to the top of config files, and makes graphs of several models: a toy with bells."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamod.cli.flags import parse
from dynamod.cli.run import build
from dynamod.extension import installed
from dynamod.extension.feature import ConfigKey, Feature
from dynamod.graph.load import load_graph
from dynamod.graph.schema import schema
from dynamod.message.errors import UserError


def expand(document: Any, wanted: Any) -> Any:
    rest = {key: value for key, value in document.data.items() if key != "bells"}
    section = {"engine": "echo_full", "served_model_name": document.data["bells"]}
    return replace(document, data={**rest, "graph": wanted, "Worker": section}), wanted


TOY = Feature("toy", "", config_keys={"bells": ConfigKey({"type": "string"}, lambda: expand)}, run_models=repr)


@pytest.fixture(autouse=True)
def _toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "installed", lambda: {"toy": TOY})
    monkeypatch.delenv("DYNAMOD_FEATURES", raising=False)


def test_a_key_becomes_components(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("bells: big ben\n")
    graph = load_graph("graphs.agg:Frontend", "b.yaml", working_dir=tmp_path)
    assert graph.services["Worker"].config["served_model_name"] == "big ben"
    assert graph.target == "graphs.agg:Frontend"
    properties = schema()["properties"]
    assert (properties["bells"], "models" in properties) == ({"type": "string"}, False)


def test_several_models(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = parse(["in=http", "out=mocker", "one", "two"])
    assert build(arguments) == repr(arguments)
    monkeypatch.setattr(installed, "installed", dict)
    with pytest.raises(UserError, match="several models need a feature that loads models on demand"):
        build(arguments)
