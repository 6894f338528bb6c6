# ruff: noqa: E501
import copy
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.graph.config import dry_run_text, read_config
from dynamod.graph.document import read_document
from dynamod.graph.load import load_graph, load_service
from dynamod.graph.overrides import deep_merge, parse_overrides, parse_value
from dynamod.graph.service_config import MissingConfig, ServiceConfig
from dynamod.message.errors import UserError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
keys = st.from_regex(r"[A-Za-z][A-Za-z0-9_-]{0,8}", fullmatch=True).filter(lambda key: key != "ServiceArgs")
paths = st.lists(keys, min_size=2, max_size=4)
trees = st.dictionaries(keys, values, max_size=4)


@given(paths, values, st.booleans())
def test_overrides_round_trip(path, value, equals):
    name, text = "--" + ".".join(path), json.dumps(value)
    result = parse_overrides([f"{name}={text}"] if equals else [name, text])
    for key in path:
        result = result[key]
    assert result == value
    assert type(result) is type(value)


@given(trees, trees)
def test_merge_changes_neither_side_and_right_wins(base, over):
    before = copy.deepcopy((base, over))
    merged = deep_merge(base, over)
    assert (base, over) == before
    assert set(merged) == set(base) | set(over)
    assert deep_merge(merged, over) == merged
    for key, value in over.items():
        if not isinstance(value, dict):
            assert merged[key] == value
    json.dumps(merged)
    for value in merged.values():  # nothing is shared: changing the result changes no input
        if isinstance(value, dict):
            value.clear()
        elif isinstance(value, list):
            value.append(1)
    assert (base, over) == before


@given(st.lists(st.text(max_size=12), max_size=4))
def test_any_arguments_parse_or_say_what_is_wrong(args):
    said = ""
    try:
        parse_overrides(args)
    except UserError as error:
        said = str(error)
    assert not said or any(arg.partition("=")[0] in said for arg in args)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8000", 8000), ("-1", -1), ("1e-3", 1e-3), (".5", 0.5), ("+3", 3), ("true", True), ("True", True),
        ("FALSE", False), ("null", None), ("[1, 2]", [1, 2]), ('{"a": 1}', {"a": 1}), ('"8"', "8"), ("abc", "abc"),
        ("NaN", "NaN"), ("inf", "inf"), ("1_000", "1_000"), ("", ""), ("a.b/c:d", "a.b/c:d"), ("{bad", "{bad"),
    ],
)  # fmt: skip
def test_values(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_override_forms():
    assert parse_overrides(["--A.b=1", "--A.c", "x=y", "--A.d.e=true", "--A.d.f=2", "--A.b=3"]) == {
        "A": {"b": 3, "c": "x=y", "d": {"e": True, "f": 2}}
    }
    assert parse_overrides(["--A.ServiceArgs.envs.N=5", "--A.x=-1", "--A.y", "-2.5"]) == {
        "A": {"ServiceArgs": {"envs": {"N": "5"}}, "x": -1, "y": -2.5}
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--A.b", "--C.d=1"], "'--A.b' has no value: '--C.d=1' looks like an option"),
        (["--A.b=-x"], "'--A.b' has no value"),
        (["--A.b"], "'--A.b' has no value"),
        (["--verbose"], "unknown argument '--verbose'"),
        (["stray"], "unknown argument 'stray'"),
        (["--A..b=1"], "unknown argument '--A..b=1'"),
        (["--A.b=1", "--A.b.c=2"], "contradicts an earlier value of 'b'"),
    ],
)
def test_wrong_overrides(args, says):
    with pytest.raises(UserError) as caught:
        parse_overrides(args)
    assert says in caught.value.line()
    assert "--Service.key=value" in caught.value.line() or "contradicts" in says


def test_document_types_and_variables():
    text = """\
base: &base {a: 1, b: 2}
x: {<<: *base, b: 3}
y: *base
port: ${PORT:-8000}
quoted: "${PORT:-8000}"
name: ${HOME_NAME}/x
empty: ${NOTHING:-}
literal: "$${PORT}"
date: 2024-01-01
small: 1e-3
sw: {8000: on}
"""
    data = read_document(text, "f", {"HOME_NAME": "h"}).data
    assert data["x"] == {"a": 1, "b": 3}
    assert data["y"] == {"a": 1, "b": 2}
    assert (data["port"], data["quoted"], data["name"], data["empty"]) == (8000, "8000", "h/x", None)
    assert (data["literal"], data["date"], data["small"]) == ("${PORT}", "2024-01-01", 1e-3)
    assert data["sw"] == {"8000": True}
    json.dumps(data)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "f.yaml:4: b.c: written twice"),
        ("a: [1\nb: 2\n", "f.yaml:2: not valid YAML"),
        ("a: !!python/object:os.system {}\n", "f.yaml:1: not valid YAML"),
        ("- 1\n", "f.yaml: expected a mapping of services, got a list"),
        ("a:\n  b: ${NOPE}\n", "f.yaml:2: a.b: environment variable NOPE is not set; set it or write ${NOPE:-default}"),
        ("a: ${1}\n", "f.yaml:1: a: bad variable"),
        ("a: &x [*x]\n", "f.yaml:1: a.0: an alias contains itself"),
        ("a: 1\n---\nb: 1\n", "not valid YAML"),
    ],
)
def test_wrong_documents_name_file_and_line(text, says):
    with pytest.raises(UserError) as caught:
        read_document(text, "f.yaml", {})
    assert says in caught.value.line()


BASE = "Common:\n  model: tiny\n  block-size: 64\n"


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        ("Wroker: {}\n", (), "c.yaml:1: Wroker: no such service in the graph; did you mean 'Worker'? sections known: Common, "),
        ("Worker: 5\n", (), "c.yaml:1: Worker: expected a mapping, got an integer"),
        ("Frontend: {ServiceArgs: {worker: 1}}\n", (), "c.yaml:1: Frontend.ServiceArgs.worker: unknown key; did you mean 'workers'? known keys: envs, nodes, placement, python, resources, workers"),
        ("Frontend:\n  ServiceArgs:\n    workers: two\n", (), "c.yaml:3: Frontend.ServiceArgs.workers: expected an integer, got a string ('two'); known keys: envs, nodes, placement, python, resources, workers"),
        ("Frontend: {ServiceArgs: {resources: {gpus: 1}}}\n", (), "c.yaml:1: Frontend.ServiceArgs.resources: unknown key 'gpus'"),
        ("Frontend: {ServiceArgs: {resources:\n {gpu: x}}}\n", (), "c.yaml:2: Frontend.ServiceArgs.resources.gpu: 'x' is not digits"),
        ("Frontend: {ServiceArgs: {placement: far}}\n", (), "Frontend.ServiceArgs.placement: 'far' is unknown; known placements: ingress, own"),
        ("Frontend: {ServiceArgs: {python: 3}}\n", (), "Frontend.ServiceArgs.python: expected the path of an interpreter, got an integer (3)"),
        ("Frontend: {ServiceArgs: {envs: [a]}}\n", (), "Frontend.ServiceArgs.envs: expected a mapping, got a string"),
        ("Worker: {model: a, blok_size: 1}\n", (), "c.yaml:1: Worker.blok_size: unknown key; did you mean 'block_size'? known keys: block_size, enable, model"),
        ("Worker:\n  model: a\n  block-size: many\n", (), "c.yaml:3: Worker.block-size: expected a valid integer"),
        ("Worker: {model: a, block-size: 1, block_size: 2}\n", (), "Worker.block_size: given twice"),
        ("Common:\n  model: 5\nWorker: {common-configs: [model]}\n", (), "c.yaml:2: Common.model: expected a valid string, got 5 (used by Worker)"),
        ("Common: {model: a}\nWorker:\n  common-configs: [modle]\n", (), "c.yaml:3: Worker.common-configs: 'modle' is not in Common; did you mean 'model'? keys of Common: model"),
        ("Worker: {common-configs: model}\n", (), "Worker.common-configs: expected a list of Common keys, got a string"),
        ("Worker: {model: a}\n", ("--Worker.ServiceArgs.workers=x",), "command line: Worker.ServiceArgs.workers: expected an integer"),
        ("Worker: {model: a}\n", ("--Nobody.x=1",), "command line: Nobody: no such service in the graph"),
    ],
)  # fmt: skip
def test_wrong_config_is_one_line_with_file_path_and_known_keys(text, args, says, project, write):
    write("c.yaml", text)
    with pytest.raises(UserError) as caught:
        load_graph("graphs.small:Frontend", "c.yaml", working_dir=project, overrides=args, environ={})
    assert says in caught.value.line()
    assert "\n" not in caught.value.line()


def test_missing_key_and_nested_model(write, tmp_path):
    write(
        "typed.py",
        """
        from pydantic import BaseModel, ConfigDict, Field
        from dynamod.graph.service import service

        class Cache(BaseModel):
            size_gb: int = 1

        class Settings(BaseModel):
            model: str
            cache: Cache | None = None
            kind: str = Field(default="a", alias="type")

        class Open(Settings):
            model_config = ConfigDict(extra="allow")

        @service(config=Settings)
        class Worker: ...

        @service(config=Open)
        class Loose: ...
        """,
    )

    def load(text, name="Worker"):
        write("c.yaml", text)
        graph = load_graph(f"typed:{name}", "c.yaml", working_dir=tmp_path, environ={})
        return load_service(graph.services[name]).parse_config(graph.services[name].config)

    def line(text):
        with pytest.raises(UserError) as caught:
            load(text)
        return caught.value.line()

    assert load("Worker: {model: a, cache: {size-gb: 3}, type: b}").cache.size_gb == 3
    assert load("Loose: {model: a, any-key: 3}", "Loose").model_extra == {"any-key": 3}
    assert line("Worker: {}") == "c.yaml:1: Worker: 'model' is missing; known keys: cache, model, type"
    assert line("") == "c.yaml: Worker: 'model' is missing; known keys: cache, model, type"
    assert "c.yaml:3: Worker.cache.sise_gb: unknown key; did you mean 'size_gb'" in line(
        "Worker:\n  model: a\n  cache: {sise_gb: 3}"
    )
    assert "c.yaml:4: Worker.cache.size_gb: expected a valid integer" in line(
        "Worker:\n  model: a\n  cache:\n    size_gb: x"
    )


def test_common_and_overrides(project):
    graph = load_graph(
        None,
        "configs/small.yaml",
        working_dir=project,
        environ={},
        overrides=["--Worker.block_size=32", "--Worker.ServiceArgs.envs.B=2", "--Worker.ServiceArgs.resources.gpu=2"],
    )
    worker = graph.services["Worker"]
    assert worker.config == {"model": "tiny", "block_size": 32}  # own spelling wins over Common's block-size
    assert worker.envs == {"A": "one", "B": "2"}
    assert worker.resources == {"gpu": 2}
    assert "Router" in graph.config  # a service of other graphs of these components may have a section


def test_both_spellings_are_one_key(project, write):
    write("c.yaml", "Worker: {block-size: 8, ServiceArgs: {envs: {A-B: 1}}}")
    over = ["--Worker.block_size=32", "--Worker.ServiceArgs.envs.A_B=2"]
    graph = load_graph("graphs.small:Frontend", "c.yaml", working_dir=project, environ={}, overrides=over)
    assert graph.services["Worker"].config == {"block-size": 32}
    assert graph.services["Worker"].envs == {"A-B": "1", "A_B": "2"}


def test_section_of_a_service_only_imported(project, write):
    (project / "graphs/small.py").write_text((project / "graphs/small.py").read_text().replace("Router, ", ""))
    write("c.yaml", "PrefillWorker: {x: 1}")
    graph = load_graph("graphs.small:Frontend", "c.yaml", working_dir=project, environ={})
    assert "PrefillWorker" not in graph.services


SEED_ERA = """\
Common:
  model: deepseek-ai/DeepSeek-R1-Distill-Llama-8B
  block-size: 64
  max-model-len: 16384
  router: kv
  kv-transfer-config: '{"kv_connector":"DynamoNixlConnector"}'
Frontend:
  served_model_name: deepseek-ai/DeepSeek-R1-Distill-Llama-8B
  endpoint: dynamo.Processor.chat/completions
  port: 8000
Processor:
  common-configs: [model, block-size, max-model-len, router]
Router:
  min-workers: 1
  common-configs: [model, router]
PrefillWorker:
  max-num-batched-tokens: 16384
  ServiceArgs:
    workers: 1
    resources:
      gpu: 1
  common-configs: [model, block-size, max-model-len, kv-transfer-config]
"""


def test_a_seed_era_file(project, write):
    write("c.yaml", SEED_ERA)
    graph = load_graph("graphs.routed:Frontend", "c.yaml", working_dir=project, environ={})
    assert graph.services["Router"].config["min-workers"] == 1
    args = ServiceConfig(graph.config).as_args("PrefillWorker")
    assert args[-4:] == [
        "--kv-transfer-config",
        '{"kv_connector":"DynamoNixlConnector"}',
        "--max-num-batched-tokens",
        "16384",
    ]


def test_service_args_move_a_service(project, write):
    write(
        "c.yaml",
        "Worker: {model: a, ServiceArgs: {resources: {gpu: 0}}}\nRouter: {}\nFrontend: {ServiceArgs: {placement: own}}",
    )
    graph = load_graph("graphs.small:Frontend", "c.yaml", working_dir=project, environ={})
    assert graph.services["Worker"].placement == "ingress"
    assert graph.services["Frontend"].placement == "own"


def test_deployment_env_replaces_file_and_command_line(project, caplog):
    env = {"DYN_DEPLOYMENT_CONFIG": "Worker: {model: env}"}
    with caplog.at_level(logging.WARNING):
        graph = load_graph(
            None, "configs/small.yaml", working_dir=project, environ=env, overrides=["--Worker.model=cli"]
        )
    assert graph.services["Worker"].config == {"model": "env"}
    assert graph.services["Worker"].workers == 1
    assert "DYN_DEPLOYMENT_CONFIG overrides configs/small.yaml and the command line" in caplog.text
    with pytest.raises(UserError, match="DYN_DEPLOYMENT_CONFIG:1: Worker"):
        load_graph("graphs.small:Frontend", None, working_dir=project, environ={"DYN_DEPLOYMENT_CONFIG": "Worker: 1"})
    assert read_config("graph: a:B\nX: {}", "f", (), {"DYN_DEPLOYMENT_CONFIG": "Y: {}"}).data == {
        "graph": "a:B",
        "Y": {},
    }


CONFIG = {
    "Common": {"model": "m", "block-size": 64, "unused": 1},
    "W": {
        "common-configs": ["model", "block-size", "absent"],
        "block-size": 16,
        "on": True,
        "off": False,
        "vllm-kv": {"a": 1},
        "vllm-x": 2.5,
        "ServiceArgs": {"workers": 2},
    },
}


def test_service_config(monkeypatch):
    monkeypatch.setenv("DYNAMO_SERVICE_CONFIG", json.dumps(CONFIG))
    config = ServiceConfig.get_instance()
    assert config is ServiceConfig.get_instance()
    assert config.require("W", "block_size") == 16
    with pytest.raises(ValueError, match=r"W\.modle must be set") as caught:
        config.require("W", "modle")
    assert isinstance(caught.value, MissingConfig)
    assert config.get_parsed_config("W") == {
        "model": "m", "block-size": 16, "on": True, "off": False, "vllm-kv": {"a": 1}, "vllm-x": 2.5,
    }  # fmt: skip
    assert config.as_args("W") == [
        "--model", "m", "--block-size", "16", "--on", "--off", "false", "--vllm-kv", '{"a": 1}', "--vllm-x", "2.5",
    ]  # fmt: skip
    assert config.as_args("W", prefix="vllm-") == ["--kv", '{"a": 1}', "--x", "2.5"]
    assert config.get_parsed_config("Nobody") == {}
    assert ServiceConfig({"A": {"b": 1}}).require("A", "b") == 1
    ServiceConfig._instance = None
    monkeypatch.setenv("DYNAMO_SERVICE_CONFIG", "{")
    with pytest.raises(UserError, match="is not JSON"):
        ServiceConfig.get_instance()


def test_dry_run(project):
    text = dry_run_text(load_graph(None, "configs/small.yaml", working_dir=project, environ={}))
    assert text.startswith("Service Configuration:\n{")
    assert json.loads(text.partition("DYNAMO_SERVICE_CONFIG=")[2])["Frontend"] == {"port": 8000}


def test_a_dry_run_shows_no_keys(project):
    overrides = ["--Frontend.api-keys=secret,other", "--Frontend.api_key_file=/etc/keys"]
    text = dry_run_text(load_graph(None, "configs/small.yaml", overrides=overrides, working_dir=project, environ={}))
    assert "secret" not in text
    assert text.count("***") == 2
    assert "/etc/keys" in text
