import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from dynamod.observe.metrics import Buckets, labelled, merge, render


class Inner(msgspec.Struct, frozen=True):
    r"""Of the mail\box.

    More."""

    depth: int
    maxDepth: int = 3
    taken: int = 0


class Stats(msgspec.Struct, frozen=True):
    """One actor."""

    state: str
    handled: int
    lost_total: float
    alive: bool
    age: float | None
    mail: Inner
    other: Inner | None = None
    names: tuple[str, ...] = ()


def test_the_whole_form() -> None:
    text = render("dynamod_actor", [({"actor": 'a"\\\n'}, Stats("Ready", 7, 1.5, True, None, Inner(2)))])
    assert text == (
        "# HELP dynamod_actor_handled_total One actor.\n"
        "# TYPE dynamod_actor_handled_total counter\n"
        'dynamod_actor_handled_total{actor="a\\"\\\\\\n"} 7\n'
        "# HELP dynamod_actor_lost_total One actor.\n"
        "# TYPE dynamod_actor_lost_total counter\n"
        'dynamod_actor_lost_total{actor="a\\"\\\\\\n"} 1.5\n'
        "# HELP dynamod_actor_alive One actor.\n"
        "# TYPE dynamod_actor_alive gauge\n"
        'dynamod_actor_alive{actor="a\\"\\\\\\n"} 1\n'
        "# HELP dynamod_actor_mail_depth Of the mail\\\\box.\n"
        "# TYPE dynamod_actor_mail_depth gauge\n"
        'dynamod_actor_mail_depth{actor="a\\"\\\\\\n"} 2\n'
        "# HELP dynamod_actor_mail_max_depth Of the mail\\\\box.\n"
        "# TYPE dynamod_actor_mail_max_depth gauge\n"
        'dynamod_actor_mail_max_depth{actor="a\\"\\\\\\n"} 3\n'
        "# HELP dynamod_actor_mail_taken_total Of the mail\\\\box.\n"
        "# TYPE dynamod_actor_mail_taken_total counter\n"
        'dynamod_actor_mail_taken_total{actor="a\\"\\\\\\n"} 0\n'
    )


def test_families_stay_together_and_the_first_of_equals_stays() -> None:
    rows = [({"a": "1"}, Inner(1)), ({"a": "2"}, Inner(2)), ({"a": "1"}, Inner(3)), ({}, Inner(4))]
    lines = [line for line in render("p", rows).splitlines() if line.startswith("p_depth")]
    assert lines == ['p_depth{a="1"} 1', 'p_depth{a="2"} 2', "p_depth 4"]
    assert render("p", []) == ""


numbers = st.integers(-(2**60), 2**60)
inner = st.builds(Inner, numbers, numbers, numbers)
stats = st.builds(Stats, st.text(), numbers, st.floats(), st.booleans(), st.none() | st.floats(), inner, inner)
plain = st.dictionaries(st.sampled_from(["actor", "component", "model"]), st.text(), max_size=3)
odd = st.dictionaries(st.text("aZ0_- é", min_size=1, max_size=4), st.text(), max_size=3)


def parse(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


@given(st.lists(st.tuples(plain, stats), max_size=4))
def test_the_official_parser_reads_what_was_meant(rows: list[tuple[dict[str, str], Stats]]) -> None:
    found = parse(render("dynamod", rows))
    for labels, row in reversed(rows):
        key = frozenset(labels.items())
        first = next(other for names, other in rows if names == labels)
        assert found["dynamod_alive", key] == first.alive
        assert found["dynamod_mail_depth", key] == first.mail.depth
        value = found["dynamod_lost_total", key]
        assert value == first.lost_total or (math.isnan(value) and math.isnan(first.lost_total))
        assert ("dynamod_age", key) in found or row.age is None


@given(st.text(min_size=1, max_size=9), st.lists(st.tuples(odd, stats), max_size=3))
def test_odd_names_are_made_valid(prefix: str, rows: list[tuple[dict[str, str], Stats]]) -> None:
    assert bool(parse(render(prefix, rows))) == bool(rows)


def test_texts_of_several_processes_become_one() -> None:
    one = render("p", [({"process": "a"}, Inner(1))])
    two = render("p", [({"process": "b"}, Inner(2, taken=5))]) + render("q", [({}, Inner(7))])
    text = merge([one, two, "", one.replace('"a"', '"c"')])
    found = list(text_string_to_metric_families(text))
    names = ["p_depth", "p_max_depth", "p_taken", "q_depth", "q_max_depth", "q_taken"]
    assert [family.name for family in found] == names
    assert [(s.labels["process"], s.value) for s in found[0].samples] == [("a", 1), ("b", 2), ("c", 1)]
    assert text.count("# TYPE p_depth gauge") == 1
    assert merge([one]) == one


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
    assert merge([text]) == text


@given(st.lists(st.tuples(plain, stats), max_size=3), st.text())
def test_a_label_for_all(rows: list[tuple[dict[str, str], Stats]], value: str) -> None:
    text = render("p", rows)
    before, after = parse(text), parse(labelled(text, "process", value))
    assert {(name, labels | {("process", value)}) for name, labels in before} == after.keys()
    assert labelled("p 1\n", "a", "b") == 'p{a="b"} 1\n'
