"""Structural tags in which anything may stand anywhere: each is served, or refused by a place."""

import json
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from dynamod.message.errors import BadRequest
from dynamod.structured.demand import demand
from dynamod.structured.parameters import STYLES
from dynamod.structured.probe import problem
from dynamod.structured.tags import FORMATS

from .tagged import (
    ANY,
    JSON,
    NUMBER,
    const,
    either,
    grammar_of,
    keeps,
    keeps_by_tokens,
    sequence,
    several,
    tag,
    walk,
    without,
)
from .test_tags import CASES, FREE, asked

WORDS = st.sampled_from(["", "a", "<t", "<tool>", "object", "string", "array", "integer", "any_text", "tag", "token"])
LEAVES = st.none() | st.booleans() | st.integers(-2, 3) | st.floats(allow_nan=False) | WORDS
MEMBERS = st.sampled_from(
    [
        *("begin", "end", "content", "type", "value", "json_schema", "style", "properties"),
        *("required", "enum", "const", "anyOf", "items", "minItems", "maxItems", "minLength"),
        *("pattern", "additionalProperties", "$ref", "$defs", "triggers", "tags", "separator", "rules"),
        *("loop", "excludes", "max_chars", "min", "max", "elements", "grammar", "at_least_one"),
        *("stop_after_first"),
    ]
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(MEMBERS, inner, max_size=3), max_leaves=8
)
SOUND: list[Any] = [form for form, _, _ in CASES + FREE if "structures" not in form]
SOUND += [{**JSON, "style": style, "json_schema": {"properties": {"a": NUMBER}}} for style in STYLES]


@st.composite
def spoilt(draw: Any) -> Any:
    """A form in which something else stands at one place."""
    form = json.loads(json.dumps(draw(st.sampled_from(SOUND))))
    at: Any = form
    while True:
        keys = [*at] if isinstance(at, dict) else [*range(len(at))]
        key = draw(st.sampled_from(keys) if keys else MEMBERS) if isinstance(at, dict) or keys else None
        if key is None:
            return form
        inner = at.get(key) if isinstance(at, dict) else at[key]
        if not isinstance(inner, (dict, list)) or draw(st.booleans()):
            at[draw(MEMBERS) if isinstance(at, dict) and draw(st.booleans()) else key] = draw(VALUES)
            return form
        at = inner


@given(spoilt() | st.fixed_dictionaries({"type": st.sampled_from(FORMATS)}, optional={"content": VALUES}) | VALUES)
def test_whatever_is_sent_is_served_or_refused(form: Any) -> None:
    try:
        found = demand(asked(structured_outputs={"structural_tag": {"type": "structural_tag", "format": form}}))
    except BadRequest as refused:
        place = refused.param or ""
    else:
        assert found is not None
        place, (error, _) = found[0], problem(found[1])
        assert "lark" not in error.lower(), error
    assert place.startswith("structured_outputs.structural_tag")


STRINGS = st.sampled_from(["<", "<a>", "</a>", "<a", ">", "a", "ab", "1", "\n</a>", "{"])
ENDS = STRINGS | st.lists(STRINGS, min_size=1, max_size=2) | st.just("")
PARAMETERS = {"properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["b"]}
PARTS = st.one_of(
    STRINGS.map(const),
    st.just(ANY),
    STRINGS.map(without),
    st.just(without(max_chars=3)),
    st.just(JSON),
    st.just({"type": "regex", "pattern": "[0-9]+|b"}),
    st.just({"type": "grammar", "grammar": 'root ::= "x" | "(" root ")"'}),
    st.sampled_from([*STYLES]).map(lambda style: {**JSON, "style": style, "json_schema": PARAMETERS}),
)


def _several(inner: Any) -> Any:
    tags = st.builds(tag, STRINGS, inner, ENDS)
    rules = st.lists(st.tuples(STRINGS, inner).map(list), min_size=1, max_size=3)
    flags = {"at_least_one": st.booleans(), "stop_after_first": st.booleans()}
    listed = st.lists(tags, min_size=1, max_size=3)
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: sequence(*parts)),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: either(*parts)),
        st.builds(several, st.sampled_from(["optional", "star", "plus"]), inner),
        inner.map(lambda part: several("repeat", part, min=1, max=3)),
        tags,
        st.fixed_dictionaries({"type": st.just("tags_with_separator"), "tags": listed, "separator": STRINGS, **flags}),
        st.fixed_dictionaries(
            {"type": st.just("triggered_tags"), "triggers": st.just(["<"]), "tags": listed, **flags},
            optional={"excludes": st.just(["}"])},
        ),
        st.fixed_dictionaries({"type": st.just("dispatch"), "rules": rules, "loop": st.booleans()}),
    )


@given(st.recursive(PARTS, _several, max_leaves=6), st.randoms(use_true_random=False))
def test_what_is_served_is_kept_to_however_it_is_tokenised(form: Any, chance: Any) -> None:
    try:
        demand(asked(structured_outputs={"structural_tag": {"type": "structural_tag", "format": form}}))
    except BadRequest:
        return
    grammar = grammar_of(form)
    why, _ = found = problem(grammar)
    if "Current row has" in why:
        return  # more ways to read a text than the parser follows at once: refused as a request
    assert found == ("", "")
    text, may_end = walk(grammar, chance, 60)
    assert keeps(grammar, text) == may_end
    assert keeps_by_tokens(grammar, text, chance, 3) == {may_end}
