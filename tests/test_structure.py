"""The house rules: which room may import which, and what files and folders look like."""

import ast
import json
import re
import subprocess
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import jsonschema_rs
import pytest
import yaml

from dynamod.graph.load import load_graph
from dynamod.graph.schema import schema

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dynamod"
EVERYBODY = {"actor", "message", "observe"}
LOWER = {
    "post",
    "registry",
    "graph",
    "preprocess",
    "kvcache",
    "router",
    "migration",
    "frontend",
    "engine",
    "sample",
    "replay",
}

ROOMS: dict[str, set[str]] = {
    "actor": set(),
    "message": set(),
    "sample": set(),
    "observe": {"message"},
    "post": EVERYBODY,
    "graph": EVERYBODY,
    "kvcache": EVERYBODY,
    "preprocess": EVERYBODY | {"sample"},  # asks for the shipped model by its name, when a user does
    "registry": EVERYBODY | {"post"},  # link_impl speaks to the daemon in post's frames; post knows no registry
    "router": EVERYBODY | {"registry", "kvcache", "post"},
    "migration": EVERYBODY | {"router", "registry", "post"},
    "frontend": EVERYBODY | {"preprocess", "router", "migration", "registry", "post"},
    "engine": EVERYBODY | {"preprocess", "kvcache", "registry", "post"},
    "replay": EVERYBODY | {"engine", "router", "kvcache", "registry"},
    "sim": EVERYBODY | {"post", "registry", "preprocess", "router", "migration", "frontend", "engine"},
    "disagg": EVERYBODY | {"router", "registry", "kvcache", "post"},
    "planner": EVERYBODY | {"router", "registry", "kvcache", "post"},
    "daemon": EVERYBODY | LOWER,
    "cli": EVERYBODY | LOWER | {"daemon", "sim"},
    "compat": EVERYBODY | LOWER | {"daemon", "cli"},
}
"""Room to the other rooms it may import. README.md shows the same table."""

NOT_OURS_TO_IMPORT = {"dynamo", "graphs", "configs", "tests"}
"""Top-level names that build upon dynamod: the package itself never imports them."""

DOCUMENTED = ("graphs", "configs", "deploy", "systemd", "tests", "tests/bench")
HOSTS = {
    "127.0.0.1",
    "localhost",
    "other",
    "example.org",
    "github.com",
    "huggingface.co",
    "json-schema.org",
    "www.apache.org",
    "www.w3.org",
}
"""Hosts that files may name in URLs. None of them is a mirror, a registry or a machine of ours."""


def sources(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def rooms() -> list[Path]:
    return sorted(path for path in PACKAGE.iterdir() if path.is_dir() and sources(path))


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and absolute name of everything that a file imports, also by `import_module("...")`."""
    here = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(here[: -node.level]) if node.level else ""
            module = ".".join(filter(None, [base, node.module]))
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and _called(node) == "import_module":
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            yield from ((node.lineno, text) for text in texts if isinstance(text, str))


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_room_has_a_rule() -> None:
    assert {room.name for room in rooms()} <= ROOMS.keys()


@pytest.mark.parametrize("room", [room.name for room in rooms()])
def test_rooms_import_what_they_may(room: str) -> None:
    wrong = []
    for path in sources(PACKAGE / room):
        for line, name in imported(path):
            first, _, rest = name.partition(".")
            other = rest.partition(".")[0]
            if first in NOT_OURS_TO_IMPORT and room != "compat":
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            if first == "dynamod" and other not in ROOMS[room] | {room, "__version__", ""}:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_imports_no_room() -> None:
    assert [name for _, name in imported(PACKAGE / "__init__.py") if name.startswith("dynamod")] == []


def test_relative_imports_stay_in_their_room() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(PACKAGE)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ImportFrom) and node.level >= len(path.relative_to(PACKAGE).parts)
    ]
    assert not wrong, f"relative imports that leave a room: {wrong}"


def test_nothing_creates_tasks_but_the_kernel() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*sources(PACKAGE), *sources(ROOT / "graphs")]
        if (PACKAGE / "actor") not in path.parents
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and _called(node) in ("create_task", "ensure_future")
    ]
    assert not wrong, f"tasks outside an actor: {wrong}"


def test_compat_only_forwards() -> None:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    wrong = []
    for path in sources(PACKAGE / "compat"):
        if path.name != "__main__.py":
            wrong += [f"{path}:{node.lineno}" for node in ast.walk(parsed(path)) if isinstance(node, definitions)]
    assert not wrong, f"implemented in compat: {wrong}"


def test_files_are_short() -> None:
    files = [path for folder in ("dynamod", "graphs", "tests") for path in sources(ROOT / folder)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > 500} == {}


def test_folders_say_what_they_are() -> None:
    folders = [*rooms(), *(ROOT / name for name in DOCUMENTED)]
    missing = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "README.md").is_file()]
    assert not missing, f"no README.md in {missing}"
    for folder in [ROOT, *folders]:
        assert (folder / "README.md").read_text().startswith("# "), folder


def test_readme_shows_the_import_rules() -> None:
    shown: dict[str, set[str]] = {}
    for row in re.findall(r"^\| `dynamod/(\w+)/` \|.*\|([^|]*)\|$", (ROOT / "README.md").read_text(), re.MULTILINE):
        shown[row[0]] = set(re.findall(r"`(\w+)`", row[1]))
    for room in rooms():
        more = ROOMS[room.name] - EVERYBODY if room.name != "observe" else ROOMS[room.name]
        assert shown[room.name] == (more if room.name not in ("daemon", "cli", "compat") else set()), room.name


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
