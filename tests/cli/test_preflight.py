"""What is known of a graph before a process of it starts."""

import importlib.util
import subprocess
import sys
from dataclasses import replace

import pytest

from dynamod.cli.flags import parse
from dynamod.cli.preflight import check, lacks_model
from dynamod.cli.run import build
from dynamod.graph.graph import Graph
from dynamod.message.errors import UserError


def graph(*words: str) -> Graph:
    return build(parse(["in=http", *words]))


def test_the_command_imports_no_http_server() -> None:
    code = "import sys, dynamod.cli.preflight, dynamod.cli.serve, dynamod.cli.run; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_devices_that_an_engine_cannot_use_are_refused() -> None:
    whole = graph("out=mocker", "sample")
    spec = whole.services["Worker"]
    check(whole, {})
    for setting, value in (("tensor-parallel-size", 4), ("base_gpu_id", 1)):
        config = {key: one for key, one in spec.config.items() if key != setting.replace("-", "_")} | {setting: value}
        with pytest.raises(
            UserError, match=rf"Worker\.{setting.replace('-', '_')} {value}: mocker chooses its devices"
        ):
            check(replace(whole, services={"Worker": replace(spec, config=config)}), {})


@pytest.mark.skipif(importlib.util.find_spec("llama_cpp") is None, reason="needs the extra llama_cpp")
def test_a_context_may_be_longer_than_trained_where_the_engine_stretches_it() -> None:
    loaded = graph("out=llamacpp", "sample.gguf", "--context-length", "3000")
    with pytest.raises(UserError, match="3000 is larger than the model's 2048"):
        check(loaded, {})
    loaded.services["Worker"].config["engine_args"] = {"rope_scale": 2}
    check(loaded, {})


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"DYN_HTTP_BODY_LIMIT_MB": "many"}, "DYN_HTTP_BODY_LIMIT_MB is 'many'"),
        ({"DYN_MIGRATION_LIMIT": "many"}, "DYN_MIGRATION_LIMIT is 'many'"),
        ({"DYN_API_KEY_FILE": "/nothere"}, "cannot read the API key file /nothere"),
    ],
)
def test_variables_that_no_process_can_use(environ: dict[str, str], says: str) -> None:
    with pytest.raises(UserError, match=says):
        check(graph("out=echo_full"), environ)


def test_whether_a_model_is_missing() -> None:
    loaded = graph("out=mocker", "sample")
    assert not lacks_model(loaded)
    del loaded.services["Worker"].config["model"]
    assert lacks_model(loaded)
    assert not lacks_model(graph("out=echo_full"))


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_a_gguf_file_for_an_engine_that_reads_none(engine: str) -> None:
    with pytest.raises(UserError) as refused:
        check(graph(f"out={engine}", "sample.gguf", "--model-config", "sample"), {})
    assert f"engine '{engine}' reads no GGUF files, and " in str(refused.value)
    assert "sample.gguf is one" in str(refused.value)
    assert refused.value.hint == "take out=llamacpp for it, or a folder with safetensors"
