"""The package works without the folder of a feature, and names a feature that is switched off."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dynamod.extension.installed import installed

from .warm import Warm

ROOT = Path(__file__).parents[2]
FEATURES = sorted(installed())
ROUTES = {
    "anthropic": ["/v1/messages", "/v1/messages/count_tokens"],
    "batches": ["/v1/files", "/v1/batches"],
    "responses": ["/v1/responses", "/v1/responses/input_tokens"],
    "lora": ["/v1/load_lora_adapter", "/v1/unload_lora_adapter"],
    "embeddings": ["/v1/embeddings", "/v1/score", "/v1/rerank"],
    "tokenize": ["/tokenize", "/detokenize", "/v1/chat/completions/render"],
    "on_demand": ["/models/load", "/models/unload"],
}
FIELDS = {"tags": ("tags", ["x"])}
"""A member of `nvext`, and a value."""
COMMANDS = {
    "planner": ["planner"],
    "replay": ["bench"],
    "role_switch": ["switch"],
    **{name: [name] for name in ("doctor", "infra", "top", "trust")},
}
SETTINGS = {
    "anthropic": ("strip-anthropic-preamble", "false"),
    "batches": ("batches-dir", "kept"),
    "responses": ("responses-dir", "kept"),
}
"""A key of the frontend, which is a flag of `dynamo-run`, too, and a value."""


class Package:
    """A copy of the package that is compiled: only what is not yet in the checkout is compiled here.

    `forks`: what commands are forked from, once there is one. It has imported the core, which is the same without a
    folder of a feature; what depends on features is imported by each command.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dm-package-", dir="/tmp"))
        self.forks: Warm | None = None
        unfinished = shutil.ignore_patterns("*.pyc.*")  # another process may be compiling
        for name in ("dynamod", "graphs", "configs"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=unfinished)
        subprocess.run([sys.executable, "-m", "compileall", "-q", str(self.folder)], check=True)

    def close(self) -> None:
        if self.forks is not None:
            self.forks.close()
        shutil.rmtree(self.folder)


@pytest.fixture(scope="module")
def package() -> Iterator[Package]:
    made = Package()
    yield made
    made.close()


def path(folder: Path) -> str:
    """The path of a package for PYTHONPATH. Processes that fork commands import modules of the tests."""
    return os.pathsep.join(map(str, [folder, folder / "dynamod/compat", ROOT]))


@pytest.fixture
def machine(machine: Any, package: Package) -> Any:
    """A machine that uses the copy of the package."""
    machine.env["PYTHONPATH"] = path(package.folder)
    if package.forks is None:
        package.forks = Warm({**machine.environ(), "DYNAMOD_SOCKET": "/nowhere/d.sock"}, core=True)
    machine.forks = package.forks
    return machine


@pytest.fixture
def removed(package: Package, request: pytest.FixtureRequest) -> Iterator[str]:
    """A feature whose folder is not in the package, nor those of features that require it."""
    gone: str = request.node.callspec.params["without"]
    names = [name for name, feature in installed().items() if gone == name or gone in feature.requires]
    for name in names:
        (package.folder / "dynamod/features" / name).rename(package.folder / name)
    yield gone
    for name in names:
        (package.folder / name).rename(package.folder / "dynamod/features" / name)


@pytest.fixture
def without(removed: str, machine: Any) -> Any:
    """A machine whose package lacks one feature, and each feature that requires it."""
    machine.name = removed
    return machine


def ended(machine: Any, *words: str, **env: str) -> Any:
    """A command that has ended."""
    return machine.start("dynamo", *words, **env).wait(60)


@pytest.mark.parametrize("without", FEATURES, indirect=True)
def test_the_package_without_a_folder(without: Any) -> None:
    name = without.name
    shown = ended(without, "features")
    assert shown.code == 0, shown.err
    assert name not in shown.out
    helped = ended(without, "--help")
    assert helped.code == 0, helped.err
    for word in COMMANDS.get(name, []):
        assert f"\n  {word} " not in helped.out
        assert f"No such command '{word}'" in ended(without, word).err
    for key, value in filter(None, [SETTINGS.get(name)]):
        assert "unknown key" in ended(without, "serve", "graphs.agg:Frontend", f"--Frontend.{key}={value}").mistake()
        assert f"unknown flag --{key}" in without.start("dynamo-run", f"--{key}", value).wait(60).mistake()
    command = without.start("dynamo", "serve", "-f", "configs/two_models.yaml", "--Frontend.port=0")
    url = command.ready()
    for model in ("small", "large"):  # of echo_core and of a mocker
        assert without.chat(url, "hello", model=model, max_tokens=4)
        for field, value in filter(None, [FIELDS.get(name)]):
            members = {"model": model, "nvext": {field: value}, "max_tokens": 4}
            assert without.chat(url, "hello", **members), "as any unknown member"
    for path in ROUTES.get(name, []):
        status, text = without.ask(url, path, {})
        assert (status, "unknown path" in text) == (404, True)
    command.end()


def test_features_that_are_switched_off(machine: Any) -> None:
    machine.env["DYNAMOD_FEATURES"] = "none"
    assert "switched off by DYNAMOD_FEATURES" in ended(machine, "features").out
    for name, words in COMMANDS.items():
        for word in words:
            assert f"belongs to the feature '{name}'" in ended(machine, word).mistake()
    flags = [f"--{key}={value}" for key, value in SETTINGS.values()]
    assert machine.start("dynamo-run", "in=http", "out=echo_full", "--dry-run", *flags).wait(60).code == 0
    url = machine.agg(*(flag.replace("--", "--Frontend.") for flag in flags)).ready()
    assert machine.chat(url, "hello")
    for path, value in FIELDS.values():
        body = {"messages": [{"role": "user", "content": "hello"}], "nvext": {path: value}}
        status, text = machine.ask(url, "/v1/chat/completions", body)
        error = json.loads(text)["error"]
        assert (status, error["param"], error["code"]) == (400, f"nvext.{path}", "feature_off")
    for name, paths in ROUTES.items():
        for path in paths:
            status, text = machine.ask(url, path, {})
            assert (status, f"feature '{name}'" in text) == (404, True)
            assert name == "anthropic" or json.loads(text)["error"]["code"] == "feature_off"


@pytest.fixture
def visits(package: Package) -> Iterator[None]:
    """One more feature in the package."""
    folder = package.folder / "dynamod/features/visits"
    shutil.copytree(ROOT / "tests/extension/toys/visits", folder)
    yield
    shutil.rmtree(folder)


@pytest.mark.usefixtures("visits")
def test_a_folder_that_is_added(machine: Any) -> None:
    """The toy has a part in the worker, a part in the processor and a route."""
    assert "a toy: /v1/visits" in ended(machine, "features").out
    command = machine.agg("--Worker.model=sample", "--Worker.engine=mocker")
    status, text = machine.ask(command.ready(), "/v1/visits")
    assert (status, json.loads(text)) == (
        200,
        {"prepared": True, "component": "Processor", "linked": True, "models": ["sample"]},
    )
    said = machine.until(lambda: re.findall("toy: (before .* 0 inst|behind .* inst)", command.err)[1:2], 10)
    assert said == ["behind the announcement there are inst"]


PLANNED = ("serve", "graphs.agg_planner:Frontend", "-f", "configs/agg_planner.yaml", "--Frontend.port=0")
REPLAY = ("bench", "replay", "conversations", "--workers=1", "--output=json")


@pytest.mark.parametrize("without", ["planner"], indirect=True)
def test_without_the_planner(without: Any) -> None:
    said = ended(without, *PLANNED).mistake()
    assert said.startswith("error: Planner: no component of kind 'planner'; known kinds: frontend, "), said
    assert json.loads(ended(without, *REPLAY).out)["requests"]
    said = ended(without, *REPLAY, "--planner=sla").mistake()
    assert said.startswith("error: --planner needs the feature 'planner', which is not installed"), said


def test_the_planner_that_is_switched_off(machine: Any) -> None:
    machine.env["DYNAMOD_FEATURES"] = "-planner"
    off = "the feature 'planner', which is off: switched off by DYNAMOD_FEATURES; see dynamo features"
    assert ended(machine, *PLANNED).mistake() == f"error: Planner: the component kind 'planner' belongs to {off}"
    assert ended(machine, "explain", "planner").mistake() == f"error: `dynamo explain planner` belongs to {off}"
    assert json.loads(ended(machine, *REPLAY).out)["requests"]
    assert ended(machine, *REPLAY, "--sweep").mistake() == f"error: --sweep needs {off}"


def test_a_planner_whose_workers_keep_their_role(machine: Any) -> None:
    command = machine.start("dynamo", *PLANNED, DYNAMOD_FEATURES="-role_switch")
    assert machine.chat(command.ready(), "hello", max_tokens=4)
    pools = json.loads(ended(machine, "planner", "status", "--output=json").out)
    assert [(pool["component"], pool["state"]) for pool in pools] == [("Worker", "active")]
    command.end()


MODELS = "models: {a: {engine: echo_full}, b: {engine: echo_full}}\n"


@pytest.mark.parametrize("without", ["on_demand"], indirect=True)
def test_without_models_on_demand(without: Any) -> None:
    (without.folder / "models.yaml").write_text(MODELS)
    unknown = "no component of kind 'ondemand'; known kinds: frontend, "
    said = ended(without, "serve", "-f", "models.yaml").mistake()
    assert said.startswith("error: no graph given: models.yaml has no `graph`, only `models`; name one like"), said
    said = ended(without, "serve", "graphs.models:Frontend").mistake()
    assert unknown in said, said
    said = without.start("dynamo-run", "in=http", "out=mocker", "sample", "--max-models", "1").wait(60).mistake()
    assert said.startswith("error: several models need a feature that loads models on demand, and none is"), said
    said = ended(without, *PLANNED, "--Planner.min-endpoint=0").mistake()
    assert said.startswith("error: Planner: min-endpoint 0 needs the feature 'on_demand', which is not installed"), said
    command = without.start("dynamo", *PLANNED)
    url = command.ready()
    assert without.chat(url, "hello", max_tokens=4)
    status, text = without.ask(url, "/v1/models")
    assert (status, "state" in json.loads(text)["data"][0]) == (200, False)
    command.end()


def test_models_on_demand_that_are_switched_off(machine: Any) -> None:
    machine.env["DYNAMOD_FEATURES"] = "-on_demand"
    (machine.folder / "models.yaml").write_text(MODELS)
    off = "the feature 'on_demand', which is off: switched off by DYNAMOD_FEATURES; see dynamo features"
    said = ended(machine, "serve", "-f", "models.yaml").mistake()
    assert said == f"error: Processor: the component kind 'ondemand' belongs to {off}"
    assert (
        ended(machine, *PLANNED, "--Planner.min-endpoint=0").mistake() == f"error: Planner: min-endpoint 0 needs {off}"
    )


MOCKERS = [f"--{name}.{key}" for name in ("Worker", "PrefillWorker") for key in ("engine=mocker", "model=sample")]
DISAGG = ("serve", "graphs.disagg:Frontend", "--Frontend.port=0", *MOCKERS)


@pytest.mark.parametrize("without", ["prefill"], indirect=True)
def test_without_prefill_workers(without: Any) -> None:
    assert "there is no role 'prefill' for workers" in ended(without, *DISAGG).mistake()
    words = ("serve", "graphs.agg:Frontend", "--Processor.remote-prefill=false")
    assert "unknown key" in ended(without, *words).mistake()
    said = ended(without, *REPLAY, "--prefill-workers=1").mistake()
    assert said.startswith("error: --prefill-workers needs the feature 'prefill', which is not installed"), said
    words = ("dynamo-run", "in=http", "out=mocker", "sample", "--kv-peer-fetch")
    said = without.start(*words).wait(60).mistake()
    assert said.startswith("error: Processor.kv_peer_fetch needs the feature 'prefill', which is not installed"), said


TIERED = ("dynamo-run", "in=http", "out=mocker", "sample", "--http-port=0", "--", "--kv-host-gb", "0.001")


@pytest.mark.parametrize("without", ["tiers"], indirect=True)
def test_without_tiers(without: Any) -> None:
    assert "unknown flag --kv-peer-fetch" in without.start("dynamo-run", "--kv-peer-fetch").wait(60).mistake()
    said = without.start(*TIERED).wait(60).mistake()
    wanted = "error: Worker.engine_args.kv_host_gb needs a feature that keeps KV blocks, and none is installed"
    assert said.startswith(wanted), said
    said = ended(without, *REPLAY, "--extra-engine-args", '{"kv_host_gb": 1}').mistake()
    assert said.startswith("error: kv_host_gb needs a feature that keeps KV blocks, and none is installed"), said
    assert json.loads(ended(without, *REPLAY).out)["requests"]


def test_tiers_that_are_switched_off(machine: Any) -> None:
    machine.env["DYNAMOD_FEATURES"] = "-tiers"
    off = "belongs to the feature 'tiers', which is off: switched off by DYNAMOD_FEATURES; see dynamo features"
    assert machine.start(*TIERED).wait(60).mistake() == f"error: Worker.engine_args.kv_host_gb {off}"
    machine.env["DYN_KVBM_DISK_CACHE_GB"] = "0.001"
    words = ("serve", "graphs.agg:Frontend", "--Worker.engine=mocker", "--Worker.model=sample")
    assert ended(machine, *words).mistake() == f"error: Worker.engine_args.kv_disk_gb {off}"


def test_tiers_without_prefill_workers(machine: Any) -> None:
    command = machine.start(*TIERED, DYNAMOD_FEATURES="-prefill")
    assert machine.chat(command.ready(), "hello", max_tokens=4)
    command.end()


def test_prefill_workers_that_are_switched_off(machine: Any) -> None:
    machine.env["DYNAMOD_FEATURES"] = "-prefill"
    off = "the feature 'prefill', which is off: switched off by DYNAMOD_FEATURES; see dynamo features"
    assert ended(machine, *DISAGG).mistake() == f"error: PrefillWorker: the role 'prefill' belongs to {off}"
    assert "requires prefill, which is off" in ended(machine, "features").out
    command = machine.agg("--Worker.model=sample", "--Worker.engine=mocker", "--Processor.remote-prefill=true")
    assert machine.chat(command.ready(), "hello", max_tokens=4)
    said = ended(machine, "switch", "Worker", "prefill", "--force").mistake()
    assert "belongs to the feature 'role_switch', which is off: requires prefill, which is off" in said, said
    status, told = machine.raw("POST", "/v1/switch/Worker", {"role": "prefill", "force": True})
    assert (status, "the command 'switch' belongs to the feature 'role_switch'" in told["error"]["message"]) == (
        400,
        True,
    )
    command.end()


def test_a_name_that_is_unknown(machine: Any) -> None:
    commands = [("dynamo", "features"), ("dynamo", "serve", "graphs.agg:Frontend"), ("dynamo-run", "out=echo_core")]
    for words in (*commands, ("dynamod",)):
        said = machine.start(*words, DYNAMOD_FEATURES="-nobody").wait(60).mistake()
        assert "DYNAMOD_FEATURES names '-nobody'; known features: " in said
