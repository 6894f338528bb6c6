"""The pages of environment variables and of metrics have each variable and each number that the code has."""

import importlib
import pkgutil
from collections.abc import Iterator

import msgspec
import pytest

import dynamod
from dynamod.http.settings import METRICS_PREFIX, VARIABLES, FrontendSettings
from dynamod.observe.metrics import Buckets, marks
from tools.manual import metrics, variables, variables_read

TABLE = {one.name: one for group in variables.GROUPS for one in group.variables}
NOT_METRICS = {"HttpStatistics", "ProcessStatistics", "RouterStatistics", "IndexStatistics"}
"""Structs of numbers that no scrape shows: `dynamo top` shows the first two, `RouterCounts` has the others."""


def test_each_variable_that_the_code_reads_is_in_the_table() -> None:
    found = variables_read.read()
    assert len(found) > 80
    assert {name: files for name, files in found.items() if name not in TABLE} == {}


def test_each_variable_of_the_table_is_read() -> None:
    found = variables_read.read()
    assert [name for name, one in TABLE.items() if not one.library and name not in found] == []
    assert [name for name, one in TABLE.items() if one.library and name in found] == []
    assert len(TABLE) == sum(len(group.variables) for group in variables.GROUPS), "no variable has two rows"
    assert all(one.meaning for one in TABLE.values())


def test_the_defaults_of_the_table_are_those_of_the_settings() -> None:
    settings = FrontendSettings()
    for name, (key, _) in VARIABLES.items():
        value, told = getattr(settings, key), TABLE[name].default
        if value or isinstance(value, bool):
            assert told == f"`{msgspec.json.encode(value).decode().removesuffix('.0')}`", name
        else:
            assert not told or told == "off", name
    assert TABLE["DYN_METRICS_PREFIX"].default == f"`{METRICS_PREFIX}`" == f"`{metrics.FRONTEND}`"
    assert {*variables.CLOCKS} == {*variables.SETTINGS}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('os.environ.get("ONE_NAME")', {"ONE_NAME"}),
        ('os.getenv("SHORT")', {"SHORT"}),
        ('environ["A"] if "B" in env else 0', {"A", "B"}),
        ("environ.pop(PLACE, None)", {"SOME_PLACE"}),
        ('x = "DYN_ANYWHERE"', {"DYN_ANYWHERE"}),
        ('found.get("OTHER"); x = "NO_NAME OF_DYN_KIND"', set()),
    ],
)
def test_what_a_read_is(source: str, names: set[str]) -> None:
    tree = variables_read.ast.parse(source)
    assert {*variables_read.names(tree, {"PLACE": {"SOME_PLACE"}})} == names


def structs(rows: metrics.Rows | metrics.Defined) -> Iterator[type[msgspec.Struct]]:
    """The struct of a row, its bases, and the structs of its fields."""
    todo = [rows.struct] if isinstance(rows, metrics.Rows) else []
    while todo:
        one = todo.pop()
        yield one
        todo += [base for base in one.__bases__ if base.__base__ is not object]
        kinds = [kind for field in msgspec.structs.fields(one) for kind in metrics.kinds(field.type)]
        todo += [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, msgspec.Struct)]


SHOWN = {struct for _, _, rows in metrics.SECTIONS for row in rows for struct in structs(row)} - {Buckets}


def test_each_number_of_a_metric_has_a_help() -> None:
    bare = [
        f"{struct.__name__}.{field.name}"
        for struct in SHOWN
        for field in msgspec.structs.fields(struct)
        if {int, float, bool, Buckets} & {*metrics.kinds(field.type)}
        if not any(mark.description for mark in marks(field)) and field.name != "dp_rank"
    ]
    assert bare == []
    found = [one for _, _, rows in metrics.SECTIONS for one in metrics.shown(rows)]
    assert [one.name for one in found if not one.help.endswith(".")] == []
    assert all(one.name.endswith("_total") == (one.kind == "counter") for one in found)


def test_the_page_has_each_struct_of_statistics() -> None:
    for module in pkgutil.walk_packages(dynamod.__path__, "dynamod."):
        if module.name.rpartition(".")[2] in ("statistics", "metrics", "worker", "processor", "keeper"):
            importlib.import_module(module.name)
    found, todo = set[str](), [msgspec.Struct]
    while todo:
        below = todo.pop().__subclasses__()
        todo += below
        found |= {
            one.__name__
            for one in below
            if one.__name__.endswith("Statistics") and one.__module__.startswith("dynamod.")
        }
    assert len(found) > 15
    assert found - {one.__name__ for one in SHOWN} - NOT_METRICS == set()
