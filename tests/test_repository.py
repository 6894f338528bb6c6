"""The repository beside its packages: README, schema, wheel, and no name of a machine in any file."""

import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from dynamod.graph.load import load_graph
from dynamod.graph.schema import schema

ROOT = Path(__file__).parents[1]


HOSTS = {
    "0.0.0.0",
    "127.0.0.1",
    "localhost",
    "other",
    "example.org",
    "github.com",
    "huggingface.co",
    "json-schema.org",
    "www.apache.org",
    "ui.perfetto.dev",
    "www.w3.org",
    "docs.astral.sh",
    "etcd.io",
    "nats.io",
}
"""Hosts that files may name in URLs. None of them is a mirror, a registry or a machine of ours."""


def test_the_root_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 200
    assert [line for line in lines if len(line) > 120] == []


def test_the_schema_for_editors_is_up_to_date() -> None:
    made = schema([load_graph("graphs.agg:Frontend", None, working_dir=ROOT)])
    kept = json.loads((ROOT / "configs/dynamod.schema.json").read_text())
    assert kept == made, "dynamo config schema > configs/dynamod.schema.json"
    check = jsonschema_rs.Draft202012Validator(kept)
    files = sorted((ROOT / "configs").glob("*.yaml"))
    assert files
    for file in files:
        text = file.read_text()
        assert text.startswith("# yaml-language-server: $schema=dynamod.schema.json\n"), file
        check.validate(yaml.safe_load(text))
    assert not check.is_valid({"Worker": {"engnie": "echo_core"}})
    (example,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "configs/README.md").read_text(), re.MULTILINE | re.DOTALL)
    check.validate(yaml.safe_load(example))


def test_graphs_and_configs_ship_in_the_wheel() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"dynamod", "graphs", "configs", "systemd"} <= set(wheel["only-include"])
    moved = wheel["sources"]
    assert {name: moved[name] for name in ("graphs", "configs", "systemd")} == {
        name: f"dynamod/shipped/{name}" for name in ("graphs", "configs", "systemd")
    }
    assert moved["dynamod/compat/dynamo"] == "dynamo"


def _texts() -> Iterator[tuple[str, str]]:
    """Every text file that git knows or would take, but the big files of the sample model."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, listed.stdout.decode().split("\0")):
        path = ROOT / name
        if not path.is_file() or path.stat().st_size > 1_000_000:
            continue
        try:
            yield name, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def test_no_file_names_a_machine() -> None:
    folders = "|".join("/" + word + "/" for word in ("ro" + "ot", "wo" + "rk", "User" + "s", "builds", "tm" + "p/w"))
    places = re.compile(rf"(?<![\w.}}])(?:{folders})")
    hosts = re.compile(r"https?://(?:[^/@\s]*@)?([A-Za-z0-9][A-Za-z0-9.-]*)")
    mirror = re.compile(
        "|".join(f"{a}{b}" for a, b in [("index", "-url *[= ]"), ("trusted", "-host"), ("find", "-links")])
    )
    wrong = []
    for name, text in _texts():
        wrong += [f"{name}: {match[0]}" for match in places.finditer(text)]
        wrong += [f"{name}: {match[0]}" for match in mirror.finditer(text)]
        wrong += [f"{name}: {match[0]}" for match in hosts.finditer(text) if match[1].lower() not in HOSTS]
    assert not wrong, "\n".join(wrong)
