"""Names of blocks: NVIDIA Dynamo's vectors, and what a name must mean."""

from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from dynamod.kvcache.hashes import PrefixHashes, block_hashes, chain, local_hashes
from dynamod.message import tokens

ids = st.lists(st.integers(0, 2**31 - 1), max_size=40)


def test_the_original_names_blocks_so() -> None:
    assert local_hashes(tokens.pack([1, 2, 3, 4]), 4) == [14643705804678351452]
    local = [9143094415614847814, 12124091508212882195, 1088361764653601668]
    assert local_hashes(tokens.pack(range(12)), 4) == local
    assert chain(local) == [9143094415614847814, 9510318385840434533, 16998148715716822651]


@given(ids, st.integers(1, 8))
def test_only_full_blocks_have_names(values: list[int], size: int) -> None:
    assert len(block_hashes(tokens.pack(values), size)) == len(values) // size


@given(ids, ids, st.integers(1, 8))
def test_equal_prefixes_have_equal_names_and_others_differ(left: list[int], right: list[int], size: int) -> None:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1
    a, b = block_hashes(tokens.pack(left), size), block_hashes(tokens.pack(right), size)
    same = common // size
    assert a[:same] == b[:same]
    assert not set(a[same:]) & set(b[same:])


@given(ids, st.integers(1, 8), st.integers(0, 10))
def test_a_chain_goes_on_from_any_block(values: list[int], size: int, cut: int) -> None:
    local = local_hashes(tokens.pack(values), size)
    cut = min(cut, len(local))
    head = chain(local[:cut])
    assert head + chain(local[cut:], head[-1] if head else None) == chain(local)


@given(ids, st.integers(1, 8), st.integers(0, 5))
def test_the_hashes_of_a_sequence_grow_with_it(values: list[int], size: int, first: int) -> None:
    first = min(first * size, len(values) // size * size)
    hashes = PrefixHashes(size, tokens.pack(values[:first]))
    hashes.extend(tokens.pack(values[first:]))
    assert hashes.local == local_hashes(tokens.pack(values), size)
    assert hashes.blocks == block_hashes(tokens.pack(values), size)


def test_a_salt_changes_all_names_and_none_is_the_original() -> None:
    ids = tokens.pack(range(12))
    plain, one, two = (PrefixHashes(4, ids, salt) for salt in ("", "a", "b"))
    assert plain.blocks == block_hashes(ids, 4)
    assert len({*plain.blocks, *one.blocks, *two.blocks}) == 9
    assert one.blocks == block_hashes(ids, 4, "a") == chain(one.local), "who gets the local hashes finds the names"
    seed = (1337 + xxh3_64_intdigest(b"a")) % 2**64
    assert one.local[0] == xxh3_64_intdigest(ids[:16], seed), "NVIDIA Dynamo's formula"
    one.extend(tokens.pack(range(12, 16)))
    assert one.blocks == block_hashes(tokens.pack(range(16)), 4, "a")
