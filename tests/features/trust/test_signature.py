"""The bytes of a signature: what was signed comes back, and no other bytes have the same signature."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.trust.signature import LARGEST, LATEST, NONCE, SignatureError, Signed, decode, encode, equal, mac

names = st.text(st.characters(exclude_categories=("C", "Z")), max_size=300)
signed = st.builds(
    Signed,
    names,
    st.integers(0, LATEST - 1),
    st.binary(min_size=NONCE, max_size=NONCE),
    st.binary(min_size=4, max_size=4).map(bytes.hex),
)
parts = st.lists(st.binary(max_size=50), max_size=4)
KEY = b"k" * 32


def fits(signature: bytes, what: str, content: list[bytes], key: bytes = KEY) -> bool:
    _, head, found = decode(signature)
    return equal(found, mac(key, head, what, content))


@given(signed, parts)
def test_what_was_signed_comes_back(one: Signed, content: list[bytes]) -> None:
    signature = encode(KEY, one, "value", content)
    assert len(signature) <= LARGEST
    found = decode(signature)[0]
    assert found[1:] == one[1:]
    assert one.node.startswith(found.node), "a long name is cut between two characters"
    assert len(one.node.encode()) > 255 or found.node == one.node
    assert fits(signature, "value", content)


@given(signed, parts, parts)
def test_other_content_has_another_signature(one: Signed, content: list[bytes], other: list[bytes]) -> None:
    signature = encode(KEY, one, "value", content)
    assert fits(signature, "value", other) == (content == other)
    assert not fits(signature, "request", content)
    assert not fits(signature, "value", content, b"another key")


@given(signed, parts, st.data())
def test_a_changed_byte_is_seen(one: Signed, content: list[bytes], data: st.DataObject) -> None:
    signature = bytearray(encode(KEY, one, "value", content))
    place = data.draw(st.integers(0, len(signature) - 1))
    signature[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(SignatureError):
        assert not fits(bytes(signature), "value", content)


@given(st.binary(max_size=LARGEST + 5))
def test_any_bytes_are_read_or_refused(noise: bytes) -> None:
    with contextlib.suppress(SignatureError):
        found, head, code = decode(noise)
        assert head + code == noise
        assert found.node.isprintable()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda good: b"\2" + good[1:], "a signature of version 2 is of another release"),
        (lambda good: good[:-1], "the parts of the signature do not fit together"),
        (lambda good: good[:20], "a signature has no 20 bytes"),
        (lambda good: good.replace(b"node", b"\xff\xfe\xfd\xfc"), "the node's name is no text"),
        (lambda good: good.replace(b"node", b"no\n\n"), "the node's name has control characters"),
    ],
)
def test_what_is_wrong_is_said(change: "object", why: str) -> None:
    good = encode(KEY, Signed("node", 1, bytes(NONCE), "00000000"), "value", [])
    with pytest.raises(SignatureError) as caught:
        decode(change(good))  # type: ignore[operator]
    assert str(caught.value) == why


def test_a_time_or_nonce_out_of_range_is_not_signed() -> None:
    for one in (Signed("n", -1, bytes(NONCE), "00000000"), Signed("n", 0, b"short", "00000000")):
        with pytest.raises(SignatureError, match="out of range"):
            one.head()
