"""Counting what a body consists of, and doubled keys, against Python's own JSON."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.message.errors import BadRequest
from dynamod.message.openai import ChatRequest
from dynamod.preprocess import parse
from dynamod.preprocess.parse import Parser, check_keys, check_size

TEXT = st.text(alphabet='a"\\\u00e9\n{}[],:u02\ue000', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers(-5, 5) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


QUOTE = "\ue000"  # becomes a quote that is written as an escape


def written(value: Any, ascii_only: bool) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).replace("\\ue000", "\\u0022").encode()


def strings(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(strings, value.values()))
    return sum(map(strings, value)) if isinstance(value, list) else isinstance(value, str)


@given(VALUES, st.booleans(), st.integers(1, 9))
def test_strings_are_counted_wherever_the_slices_end(value: Any, ascii_only: bool, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "LARGE", size)
        body = written(value, ascii_only)
        found = check_size(body)
        assert found == strings(value)
        check_keys(body, msgspec.json.decode(body), found)


@given(st.binary(max_size=60), st.integers(1, 5))
def test_any_bytes_are_counted_or_refused(body: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parse, "LARGE", size)
        assert check_size(body) >= 0


def doubled(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise KeyError
    return dict(pairs)


KEY = st.sampled_from(['"a"', '"b"', '"\\u0061"', '"\\u0022"', '"\\""', '"\\\\u0022"', '"\\\\"'])
OBJECTS = st.recursive(
    KEY | st.just("1"),
    lambda inner: st.lists(st.tuples(KEY, inner), max_size=4).map(
        lambda pairs: "{" + ", ".join(f"{key} :{value}" for key, value in pairs) + "}"
    ),
    max_leaves=8,
)


@given(OBJECTS)
def test_a_key_is_in_an_object_once(text: str) -> None:
    body = text.encode()
    try:
        json.loads(text, object_pairs_hook=doubled)
    except KeyError:
        for known in (None, check_size(body)):
            with pytest.raises(BadRequest, match="twice"):
                check_keys(body, msgspec.json.decode(body), known)
    else:
        for known in (None, check_size(body)):
            check_keys(body, msgspec.json.decode(body), known)


def test_a_doubled_key_is_named() -> None:
    body = b'{"messages":[{"role":"user","content":"x","content":"y"}]}'
    with pytest.raises(BadRequest, match="`content` twice") as caught:
        Parser(ChatRequest).parse(body)
    assert (caught.value.param, caught.value.code) == ("content", "invalid_json")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (["bad"], "the key 'bad', which is no token id"),
        (["7", "bad", "-1"], "the keys 'bad', '-1', which are no token ids"),
        (list("abcde"), "the keys 'a', 'b', 'c' and 2 others, which are no token ids"),
    ],
)
def test_wrong_keys_of_a_bias_are_named(keys: list[str], said: str) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x"}], "logit_bias": dict.fromkeys(keys, 1)})
    with pytest.raises(BadRequest, match=rf"`logit_bias\[\.\.\.\]` has {said}|`logit_bias` has {said}"):
        Parser(ChatRequest).parse(body.encode())


HEAD = b'{"messages":[{"role":"user","content":"hi"}],"x":'
LARGE_BODIES = {
    "values": b"[" + b"1," * 2_000_001 + b"1]}",
    "objects, lists": b"[" + b"{}," * 140_000 + b"1]}",
    "keys": b"{" + b",".join(b'"%d":1' % place for place in range(140_000)) + b"}}",
    "escaped characters": b'"' + b"\\n" * 5_000_001 + b'"}',
    "bytes outside of strings": b" " * 24_000_001 + b"1}",
}


@pytest.mark.parametrize("what", LARGE_BODIES)
def test_a_body_that_would_take_long_to_decode_is_refused(what: str) -> None:
    with pytest.raises(BadRequest, match=what) as caught:
        Parser(ChatRequest).parse(HEAD + LARGE_BODIES[what])
    assert caught.value.code == "request_too_complex"


def test_what_is_large_but_simple_is_read() -> None:
    text = 'a, {"b": [1, 2]}\n' * 200_000
    body = json.dumps({"messages": [{"role": "user", "content": text}], "x": 1}).encode()
    request, unknown = Parser(ChatRequest).parse(body)
    assert (request.messages[0].content, unknown) == (text, 1)
    ids = HEAD + b"[" + b"1," * 1_999_000 + b"1]}"
    assert Parser(ChatRequest).parse(ids)[1] == 1
    with pytest.raises(BadRequest):
        Parser(ChatRequest).parse(HEAD + LARGE_BODIES["values"])
    assert Parser(ChatRequest).parse(HEAD + LARGE_BODIES["values"], context_length=3_000_000)[1] == 1
