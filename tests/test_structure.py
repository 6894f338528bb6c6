"""The rules of the code: which package may import which, and what files and folders look like."""

import ast
import re
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from dynamod.extension.installed import installed

from . import limits
from .limits import nodes, sources

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dynamod"
EVERYBODY = {"actor", "message", "observe"}
"""What every package may import, but these three and `sample`."""

PACKAGES: dict[str, set[str]] = {
    "actor": set(),
    "message": set(),
    "sample": set(),
    "observe": {"message"},
    "extension": {"message"},
    "transport": EVERYBODY,
    "graph": EVERYBODY | {"extension"},
    "kvcache": EVERYBODY,
    "http": EVERYBODY | {"extension"},
    "parsers": EVERYBODY,
    "structured": EVERYBODY,
    "preprocess": EVERYBODY | {"sample"},  # asks for the shipped model by its name, when a user does
    "discovery": EVERYBODY | {"transport"},  # the connection to the daemon; transport knows no registry
    "router": EVERYBODY | {"discovery", "kvcache", "transport"},
    "migration": EVERYBODY | {"router", "discovery", "transport"},
    "ingress": EVERYBODY
    | {"http", "parsers", "structured", "preprocess", "router", "migration", "discovery", "kvcache", "transport"}
    | {"extension"},
    "engine": EVERYBODY | {"parsers", "preprocess", "structured", "kvcache", "transport"},
    "worker": EVERYBODY | {"engine", "preprocess", "kvcache", "discovery", "transport"} | {"extension"},
}
"""Package to the other packages it may import. dynamod/README.md shows the same table."""
BELOW = EVERYBODY | PACKAGES.keys()
PACKAGES |= {
    "runtime": BELOW,
    "sdk": BELOW | {"runtime"},
    "daemon": EVERYBODY | {"extension", "graph", "runtime", "discovery", "transport"},
    "control": EVERYBODY | {"extension", "graph", "runtime", "discovery", "transport", "daemon"},
}
PACKAGES["cli"] = BELOW | {"runtime", "sdk", "daemon", "control"}
PACKAGES["features"] = PACKAGES["compat"] = PACKAGES["cli"] | {"cli"}
FEATURES = sorted(path.parent.name for path in (PACKAGE / "features").glob("*/__init__.py"))

LAUNCH = {"attach", "components", "liveness", "owned", "paths", "plan", "release", "snapshot", "statistics"}
"""Modules of `runtime` that `daemon` and `control` may import: what is said to a process, not what runs in one."""

TOP_LEVEL = {"dynamod", "graphs", "configs", "tests", "tools", "systemd", "pyproject.toml", "README.md"} | {
    *(
        ".ci",
        ".github",
        ".gitignore",
        ".editorconfig",
        ".pre-commit-config.yaml",
        "Makefile",
        "mkdocs.yml",
        "docs",
        "examples",
        "requirements.lock",
    ),
    *("deploy", "LICENSE", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md"),
}

NOT_OURS_TO_IMPORT = {"dynamo", "graphs", "configs", "tests", "tools"}
"""Top-level names that build upon dynamod: the package itself never imports them, but for what follows."""

THIN = {("dynamod/cli/sim.py", "tools.sim.cli")}
"""A command that hands its words to a tool, where there is one."""

DOCUMENTED = ("dynamod", "graphs", "configs", "deploy", "systemd", "tests", "tools", "tools/bench", "tools/sim")


def packages() -> list[Path]:
    return sorted(path for path in PACKAGE.iterdir() if path.is_dir() and sources(path))


@cache
def imported(path: Path) -> Sequence[tuple[int, str]]:
    """Line and absolute name of everything that a file imports, also by `import_module("...")`."""
    return [*_imported(path)]


@cache
def texts(path: Path) -> Sequence[tuple[int, str]]:
    """Line and value of each string of a file."""
    constants = (node for node in nodes(path) if isinstance(node, ast.Constant))
    return [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]


def _imported(path: Path) -> Iterator[tuple[int, str]]:
    here = path.relative_to(ROOT).with_suffix("").parts
    for node in nodes(path):
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


def test_every_package_has_a_rule() -> None:
    assert {package.name for package in packages()} == PACKAGES.keys()


@pytest.mark.parametrize("package", [package.name for package in packages()])
def test_packages_import_what_they_may(package: str) -> None:
    wrong = []
    for path in sources(PACKAGE / package):
        for line, name in imported(path):
            first, _, rest = name.partition(".")
            other, _, module = rest.partition(".")
            thin = (str(path.relative_to(ROOT)), name) in THIN
            if first in NOT_OURS_TO_IMPORT and package != "compat" and not thin:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            if first == "dynamod" and other not in PACKAGES[package] | {package, "__version__", ""}:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
            if package in ("daemon", "control") and other == "runtime" and module.partition(".")[0] not in LAUNCH:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("feature", FEATURES)
def test_features_import_what_they_require(feature: str) -> None:
    """And nobody imports a feature but itself, and those that require or use it."""
    wrong = []
    for path in sources(PACKAGE):
        parts = path.relative_to(PACKAGE).parts
        owner = parts[1] if parts[0] == "features" and len(parts) > 2 else ""
        allowed = (owner, *installed()[owner].requires, *installed()[owner].uses) if owner else ()
        if feature in allowed:
            continue
        wrong += [
            f"{path.relative_to(ROOT)}:{line} imports {name}"
            for line, name in imported(path)
            if f"{name}.".startswith(f"dynamod.features.{feature}.")
        ]
        wrong += [
            f"{path.relative_to(ROOT)}:{line} names {text!r}"
            for line, text in texts(path)
            if re.search(rf"\bfeatures[./]{feature}\b", text)
        ]
    assert not wrong, "\n".join(wrong)


def test_no_package_names_anothers_classes_in_text() -> None:
    """A string like `dynamod.engine.echo:EchoCore` is an import too: only the package itself may write it."""
    named = re.compile(r"\b(?:dynamod\.)(\w+)(?:\.\w+)*:[A-Z_a-z]\w*|:(\w+Component)\b")
    wrong = []
    for path in sources(PACKAGE):
        package = path.relative_to(PACKAGE).parts[0]
        for line, text in texts(path):
            match = named.search(text)
            if match is not None and match[1] != package and package != "runtime":
                wrong.append(f"{path.relative_to(ROOT)}:{line} names {match[0]}")
    assert not wrong, "\n".join(wrong)


def test_the_package_itself_imports_nothing_of_ours() -> None:
    assert [name for _, name in imported(PACKAGE / "__init__.py") if name.startswith("dynamod")] == []


def test_relative_imports_stay_in_their_package() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(PACKAGE)
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and node.level >= len(path.relative_to(PACKAGE).parts)
    ]
    assert not wrong, f"relative imports that leave a package: {wrong}"


def test_actors_are_reached_by_messages() -> None:
    """Nobody but the kernel takes the actor out of its cell."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(PACKAGE)
        if (PACKAGE / "actor") not in path.parents
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and node.attr == "actor" and isinstance(node.ctx, ast.Load)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("spec", "service", "options", "self"))
    ]
    assert not wrong, f"actors taken out of their cells: {wrong}"


def test_messages_of_actors_have_types() -> None:
    wrong = []
    for path in sources(PACKAGE):
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and {"handle", "control"} & {
                getattr(decorator, "id", "") for decorator in node.decorator_list
            }:
                kind = node.args.args[-1].annotation
                if kind is None or ast.unparse(kind) in ("Any", "object"):
                    wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong, f"messages of any type: {wrong}"


def test_every_module_is_used() -> None:
    """By an import of another module of ours, by a registry, or as an entry point."""
    whole = (
        "\n".join(path.read_text() for folder in ("dynamod", "graphs") for path in sources(ROOT / folder))
        + (ROOT / "pyproject.toml").read_text()
    )
    used = {
        name
        for path in [*sources(PACKAGE), *sources(ROOT / "graphs"), *sources(ROOT / "tools")]
        for _, name in imported(path)
    }
    used |= {name.rpartition(".")[0] for name in used}
    unused = []
    for path in sources(PACKAGE):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if path.name in ("__init__.py", "__main__.py") or "compat" in path.parts:
            continue
        named = rf'"{re.escape(name)}[:"]|__(?:name|package)__}}\.{path.stem}[:"]|python -m {re.escape(name)}\b'
        if name not in used and not re.search(named, whole):
            unused.append(name)
    assert not unused, unused


def test_the_top_level_is_as_the_user_asked() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {name.partition("/")[0] for name in listed.stdout.decode().split("\0") if name}
    assert names <= TOP_LEVEL


def test_nothing_creates_tasks_but_the_kernel() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in [*sources(PACKAGE), *sources(ROOT / "graphs")]
        if (PACKAGE / "actor") not in path.parents
        for node in nodes(path)
        if isinstance(node, ast.Call) and _called(node) in ("create_task", "ensure_future")
    ]
    assert not wrong, f"tasks outside an actor: {wrong}"


def test_compat_only_forwards() -> None:
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
    wrong = []
    for path in sources(PACKAGE / "compat"):
        if path.name != "__main__.py":
            wrong += [f"{path}:{node.lineno}" for node in nodes(path) if isinstance(node, definitions)]
    assert not wrong, f"implemented in compat: {wrong}"


def test_files_are_short() -> None:
    """Of tests, tools and graphs; LIMITS has the files of the package."""
    files = [path for folder in ("graphs", "tests", "tools") for path in sources(ROOT / folder)]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert {path: length for path, length in lengths.items() if length > 450} == {}


LIMITS = {"lines": 400, "methods": 20, "attributes": 15, "arguments": 8}
"""Of a file; of a class; of a constructor. `limits.py` says what counts.

A class or file above a limit lacks a concept: it is not cut by size.
"""
MOST_EXCEPTIONS = 10

EXCEPTIONS: dict[str, dict[str, str]] = {
    "lines": {},
    "methods": {
        "discovery/etcd/mirror.py:EtcdMirror": "one method for each event of registry and etcd",
        "discovery/view.py:View": "all questions of routers, answered from one set of indexes",
        "engine/llamacpp/scheduler.py:Scheduler": "all kinds of sequences share slots and turns",
        "features/batches/store.py:Store": "files and batches refer to each other",
        "ingress/api/response.py:ResponseWriter": "the per-token path: a part costs a call per token",
        "ingress/dispatcher.py:Dispatcher": "placement and its queues; split with the request stages",
        "structured/tags.py:Rules": "one method for each type of the notation",
        "worker/worker.py:Worker": "a handler for each kind of message; parts with dispatch by type",
    },
    "attributes": {
        "actor/cell.py:Cell": "the kernel's hot path, one object per actor",
        "engine/llamacpp/kv_cells.py:Sequence": "a row of the scheduler's hot loop: data with slots",
        "engine/llamacpp/sampling.py:Sampler": "the parameters of sampling, converted once for the per-token loop",
        "ingress/api/response.py:ResponseWriter": "the per-token path: a part costs a call per token",
        "ingress/dispatcher.py:Dispatcher": "placement and its queues; features reach its parts",
        "migration/answer.py:Answer": "the state of one answer, all of which a migration has to carry",
        "router/router.py:Router": "the parts of one decision, each with its own class",
    },
    "arguments": {
        "features/replay/pools.py:PoolReplay": "the options of one simulated machine, most of them by keyword",
        "graph/service.py:Service": "the options of the public decorator `@service`",
    },
}
"""Why a file or class is above a limit."""

CIRCLE = 3
"""Files of a package that may import each other in a circle."""
KERNEL_CIRCLE = 5
"""In `actor/`: an actor, its context, its cell, its supervisor and the system know each other."""
IN_FLIGHT_REQUEST = 200
"""Lines of `InFlightRequest`: acquire a place, open an attempt, wait for its end, decide."""


def measured() -> dict[str, dict[str, int]]:
    classes = limits.Classes(PACKAGE)
    return {
        "lines": limits.lines(PACKAGE),
        "methods": classes.methods(),
        "attributes": classes.attributes(),
        "arguments": classes.arguments(),
    }


def test_files_and_classes_keep_to_the_limits() -> None:
    """And an exception that is no longer needed leaves the table."""
    for limit, sizes in measured().items():
        above = {name: size for name, size in sizes.items() if size > LIMITS[limit]}
        excepted = EXCEPTIONS[limit]
        assert {name: size for name, size in above.items() if name not in excepted} == {}, limit
        assert [name for name in excepted if name not in above] == [], f"no exception is needed: {limit}"
        assert len(excepted) <= MOST_EXCEPTIONS
        assert all(excepted.values()), limit


def test_no_large_circles_of_files() -> None:
    found = limits.circles(PACKAGE)
    assert found, "a few small circles are known"
    large = [
        group for group in found if len(group) > (KERNEL_CIRCLE if group[0].startswith("dynamod.actor.") else CIRCLE)
    ]
    assert large == []


def test_an_in_flight_request_is_small() -> None:
    node = limits.Classes(PACKAGE).found["migration/request.py:InFlightRequest"]
    assert node.end_lineno is not None
    assert node.end_lineno - node.lineno + 1 <= IN_FLIGHT_REQUEST


def test_folders_say_what_they_are() -> None:
    features = [PACKAGE / "features" / name for name in FEATURES]
    folders = [*packages(), *features, *(ROOT / name for name in DOCUMENTED)]
    missing = [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "README.md").is_file()]
    assert not missing, f"no README.md in {missing}"
    for folder in [ROOT, *folders]:
        assert (folder / "README.md").read_text().startswith("# "), folder


def test_the_map_shows_the_import_rules() -> None:
    shown: dict[str, set[str]] = {}
    for row in re.findall(r"^\| `(\w+)/` \|.*\|([^|]*)\|$", (PACKAGE / "README.md").read_text(), re.MULTILINE):
        shown[row[0]] = set(re.findall(r"`(\w+)`", row[1]))
    for package, allowed in PACKAGES.items():
        if package in ("runtime", "sdk", "cli", "compat", "features"):
            assert package in shown  # "all above" in words
        else:
            more = allowed if package == "observe" else allowed - EVERYBODY
            assert shown[package] == more, package


def test_the_map_names_files_that_exist() -> None:
    named = set(re.findall(r"`(\w+/[\w/]+\.py)`", (PACKAGE / "README.md").read_text()))
    assert named
    missing = {name for name in named if not (PACKAGE / name).is_file() and not (ROOT / name).is_file()}
    assert not missing


@pytest.mark.parametrize(
    "package",
    [package.name for package in packages() if package.name != "features"] + [f"features/{name}" for name in FEATURES],
)
def test_the_readme_of_a_package_names_its_modules(package: str) -> None:
    """All of them, with or without `.py`, and no file in the first column of a table that is not there."""
    text = (PACKAGE / package / "README.md").read_text()
    named = {name.rstrip("/").rpartition("/")[2].removesuffix(".py") for name in re.findall(r"`([\w./]+)`", text)}
    modules = [path for path in sources(PACKAGE / package) if path.name not in ("__init__.py", "__main__.py")]
    assert [str(path.relative_to(PACKAGE)) for path in modules if path.stem not in named] == []
    cells = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    files = {path.name for path in sources(PACKAGE / package)}
    assert {name for cell in cells for name in re.findall(r"(\w+\.py)`", cell)} <= files
