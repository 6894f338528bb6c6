import sys
from dataclasses import replace

import jsonschema_rs
import pytest
import yaml

from dynamod.graph.diff import diff, lines
from dynamod.graph.graph import Graph
from dynamod.graph.load import load_graph
from dynamod.graph.schema import schema


def test_schema_accepts_and_rejects(project):
    graphs = [
        load_graph(f"graphs.{name}:Frontend", None, working_dir=project, overrides=["--Worker.model=x"])
        for name in ("small", "routed")
    ]
    made = schema(graphs)
    assert "components.all" not in sys.modules
    check = jsonschema_rs.Draft202012Validator(made)
    check.validate(yaml.safe_load((project / "configs/small.yaml").read_text()))
    for good in (
        {"Worker": {"block-size": 1, "block_size": 2}},
        {"graph": {"services": {"A": "m:A", "B": {"class": "m:B", "workers": 2}}, "links": ["A -> B", ["A", "B"]]}},
        {"Unknown": {"x": 1, "ServiceArgs": {"resources": {"gpu": 1, "memory": "20Gi"}}}, "x-base": [1]},
    ):
        check.validate(good)
    for bad in (
        {"Worker": {"blok": 1}},
        {"Worker": {"block-size": "many"}},
        {"Frontend": {"ServiceArgs": {"worker": 1}}},
        {"graph": "no target"},
        {"graph": {"services": {"A": {"workers": 1}}}},
        {"Frontend": {"ServiceArgs": {"resources": {"memory": "20Gb"}}}},
    ):
        with pytest.raises(jsonschema_rs.ValidationError):
            check.validate(bad)
    assert jsonschema_rs.meta.is_valid(made)
    assert jsonschema_rs.meta.is_valid(schema())


def test_diff(project):
    small, routed = (
        load_graph(f"graphs.{name}:Frontend", None, working_dir=project, overrides=["--Worker.model=x"])
        for name in ("small", "routed")
    )
    changes = diff(small, routed)
    assert (changes.added, changes.removed) == (("Router",), ())
    assert changes.changed == {"Processor": ("depends",)}
    assert diff(routed, small).removed == ("Router",)
    assert diff(small, small).nothing
    worker = replace(small.services["Worker"], workers=3, code="other", file="elsewhere")
    moved = Graph(**{**small.__dict__, "services": {**small.services, "Worker": worker}})
    assert diff(small, moved).changed == {"Worker": ("code", "workers")}


def test_changes_as_lines_hide_secrets():
    words = ["--Worker.engine=echo_core", "--Frontend.api_keys=old"]
    old = load_graph("graphs.agg:Frontend", None, overrides=words)
    new = load_graph(
        "graphs.agg:Frontend",
        None,
        overrides=["--Worker.engine=mocker", "--Worker.engine_args.seed=3", "--Frontend.api_keys=new"],
    )
    found = lines(old, new)
    assert "Worker.config.engine: echo_core -> mocker" in found
    assert (
        "Worker.config.engine_args.seed: unset -> 3" in found
        or "Worker.config.engine_args: unset -> {'seed': 3}" in found
    )
    assert "Frontend.config.api_keys: another value" in found
    assert lines(new, new) == []
    alone = load_graph("graphs.agg:Frontend", None, overrides=words, service_name="Worker")
    assert set(lines(old, alone)) >= {"- Frontend", "- Processor"}
    assert set(lines(alone, old)) >= {"+ Frontend", "+ Processor"}
