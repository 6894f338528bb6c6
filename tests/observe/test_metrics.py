"""Structs become metric families; the families of several processes become one text."""

import math
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dynamod.actor import Total
from dynamod.observe.metrics import Buckets, Row, exposition, families, labelled, merged, parsed, rendered


class Inner(msgspec.Struct, frozen=True):
    r"""Of the mail\box.

    More."""

    depth: int
    maxDepth: int = 3
    taken: Total = 0


class Stats(msgspec.Struct, frozen=True):
    """One actor."""

    state: str
    handled: Total
    lost_total: float
    alive: bool
    age: float | None
    mail: Inner
    other: Inner | None = None
    names: tuple[str, ...] = ()


def render(prefix: str, rows: Iterable[tuple[dict[str, str], msgspec.Struct]]) -> str:
    return exposition(families((prefix, labels, struct) for labels, struct in rows))


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def test_the_whole_form() -> None:
    text = render("dynamod_actor", [({"actor": 'a"\\\n'}, Stats("Ready", 7, 1.5, True, None, Inner(2)))])
    assert text == (
        "# HELP dynamod_actor_handled_total One actor.\n"
        "# TYPE dynamod_actor_handled_total counter\n"
        'dynamod_actor_handled_total{actor="a\\"\\\\\\n"} 7.0\n'
        "# HELP dynamod_actor_lost_total One actor.\n"
        "# TYPE dynamod_actor_lost_total counter\n"
        'dynamod_actor_lost_total{actor="a\\"\\\\\\n"} 1.5\n'
        "# HELP dynamod_actor_alive One actor.\n"
        "# TYPE dynamod_actor_alive gauge\n"
        'dynamod_actor_alive{actor="a\\"\\\\\\n"} 1.0\n'
        "# HELP dynamod_actor_mail_depth Of the mail\\\\box.\n"
        "# TYPE dynamod_actor_mail_depth gauge\n"
        'dynamod_actor_mail_depth{actor="a\\"\\\\\\n"} 2.0\n'
        "# HELP dynamod_actor_mail_max_depth Of the mail\\\\box.\n"
        "# TYPE dynamod_actor_mail_max_depth gauge\n"
        'dynamod_actor_mail_max_depth{actor="a\\"\\\\\\n"} 3.0\n'
        "# HELP dynamod_actor_mail_taken_total Of the mail\\\\box.\n"
        "# TYPE dynamod_actor_mail_taken_total counter\n"
        'dynamod_actor_mail_taken_total{actor="a\\"\\\\\\n"} 0.0\n'
    )


def test_other_annotations_are_gauges() -> None:
    class Odd(msgspec.Struct):
        least: Annotated[int, msgspec.Meta(ge=0)]
        named: Annotated[int, "counter"]

    assert [family.type for family in families([("p", {}, Odd(1, 2))])] == ["gauge", "gauge"]


def test_families_stay_together_and_the_first_of_equals_stays() -> None:
    rows = [({"a": "1"}, Inner(1)), ({"a": "2"}, Inner(2)), ({"a": "1"}, Inner(3)), ({}, Inner(4))]
    lines = [line for line in render("p", rows).splitlines() if line.startswith("p_depth")]
    assert lines == ['p_depth{a="1"} 1.0', 'p_depth{a="2"} 2.0', "p_depth 4.0"]
    assert render("p", []) == ""


def test_a_gauge_and_a_counter_may_share_a_name() -> None:
    class Both(msgspec.Struct):
        streams: int
        streams_total: int

    text = render("p", [({}, Both(1, 5))])
    assert read(text) == {("p_streams", frozenset()): 1, ("p_streams_total", frozenset()): 5}
    assert exposition(merged(text_string_to_metric_families(text))) == text


numbers = st.integers(-(2**53), 2**53)
inner = st.builds(Inner, numbers, numbers, numbers)
stats = st.builds(Stats, st.text(), numbers, st.floats(), st.booleans(), st.none() | st.floats(), inner, inner)
plain = st.dictionaries(st.sampled_from(["actor", "component", "model"]), st.text(), max_size=3)
Found = list[tuple[dict[str, str], Stats]]


@given(st.lists(st.tuples(plain, stats), max_size=4))
def test_the_official_parser_reads_what_was_meant(rows: Found) -> None:
    found = read(render("dynamod", rows))
    for labels, row in reversed(rows):
        key = frozenset(labels.items())
        first = next(other for names, other in rows if names == labels)
        assert found["dynamod_alive", key] == first.alive
        assert found["dynamod_mail_depth", key] == first.mail.depth
        value = found["dynamod_lost_total", key]
        assert value == first.lost_total or (math.isnan(value) and math.isnan(first.lost_total))
        assert ("dynamod_age", key) in found or row.age is None


@given(st.text(min_size=1, max_size=9), st.lists(st.tuples(plain, stats), max_size=3))
def test_odd_names_are_made_valid(prefix: str, rows: Found) -> None:
    assert bool(read(render(prefix, rows))) == bool(rows)


@given(st.lists(st.lists(st.tuples(plain, stats), max_size=3), max_size=3))
def test_reading_and_writing_again_changes_nothing(processes: list[Found]) -> None:
    texts = [
        exposition(labelled(families(("p", labels, row) for labels, row in rows), "process", str(number)))
        for number, rows in enumerate(processes)
    ]
    whole = exposition(merged(family for text in texts for family in text_string_to_metric_families(text)))
    apart: dict[Any, str] = {}
    for text in texts:
        apart |= {key: str(value) for key, value in read(text).items()}
    assert {key: str(value) for key, value in read(whole).items()} == apart


def test_texts_of_several_processes_become_one() -> None:
    rows: list[Row] = [("p", {"process": "b"}, Inner(2, taken=5)), ("q", {}, Inner(7))]
    one = render("p", [({"process": "a"}, Inner(1))])
    texts = [one, exposition(families(rows)), "", one.replace('"a"', '"c"')]
    text = exposition(merged(family for one in texts for family in text_string_to_metric_families(one)))
    found = list(text_string_to_metric_families(text))
    names = ["p_depth", "p_max_depth", "p_taken", "q_depth", "q_max_depth", "q_taken"]
    assert [family.name for family in found] == names
    assert [(s.labels["process"], s.value) for s in found[0].samples] == [("a", 1), ("b", 2), ("c", 1)]
    assert text.count("# TYPE p_depth gauge") == 1


def test_a_family_without_samples_stays() -> None:
    text = "# HELP p_left_total Who left\n# TYPE p_left_total counter\n"
    assert exposition(merged(text_string_to_metric_families(text))) == text


class Times(msgspec.Struct, frozen=True):
    """What it took."""

    hashing_ms: Buckets


def test_histograms() -> None:
    rows = [({"model": name}, Times(Buckets((0.5, 1), (2, 0, 3), 7.5))) for name in ("a", "a", 'b"')]
    text = render("overhead", rows)
    (family,) = text_string_to_metric_families(text)
    assert (family.name, family.type, family.documentation) == ("overhead_hashing_ms", "histogram", "What it took.")
    samples = [(s.name, s.labels.get("le"), s.value) for s in family.samples if s.labels["model"] == 'b"']
    assert samples == [
        ("overhead_hashing_ms_bucket", "0.5", 2),
        ("overhead_hashing_ms_bucket", "1.0", 2),
        ("overhead_hashing_ms_bucket", "+Inf", 5),
        ("overhead_hashing_ms_count", None, 5),
        ("overhead_hashing_ms_sum", None, 7.5),
    ]
    assert len(family.samples) == 10, "of two equal ones the first stays"
    assert exposition(merged([family])) == text


@given(st.lists(st.tuples(plain, stats), max_size=3), st.text())
def test_a_label_for_all(rows: Found, value: str) -> None:
    text = render("p", rows)
    before = read(text)
    after = read(exposition(labelled(text_string_to_metric_families(text), "process", value)))
    assert {(name, labels | {("process", value)}) for name, labels in before} == after.keys()
    assert exposition(labelled(text_string_to_metric_families("p 1\n"), "a", "b")).endswith('p{a="b"} 1.0\n')


def test_a_scraper_chooses_the_form() -> None:
    rows: list[Row] = [("p", {"a": "b"}, Inner(3))]
    plain, kind = rendered(families(rows), "text/plain;version=0.0.4")
    assert kind.startswith("text/plain")
    asked = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4"
    text, kind = rendered(families(rows), asked)
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    assert b"# EOF" not in plain
    assert exposition(parsed(text.decode())) == plain.decode()
    assert exposition(parsed(plain.decode()), openmetrics=True) == text.decode()
