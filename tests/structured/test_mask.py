"""The mask that engines of users get: which ids may come, for arrays of several kinds."""

import json
import math
from typing import Any

import numpy as np
import pytest

from dynamod.message.errors import EngineFailed
from dynamod.message.worker import Grammar
from dynamod.structured.grammars import Grammars
from dynamod.structured.mask import AnswerMask
from dynamod.structured.probe import _Bytes

END = 256


def mask_of(expression: str, prior: bytes = b"") -> AnswerMask:
    grammars = Grammars(_Bytes, (END,))
    return AnswerMask(lambda: grammars.matcher(Grammar("regex", expression)).behind(prior))


def ids(mask: AnswerMask, generated: bytes) -> set[int]:
    allowed = int.from_bytes(mask.allowed(list(generated)), "little")
    return {index for index in range(300) if allowed >> index & 1}


def test_what_may_come_and_when_it_may_end() -> None:
    mask = mask_of("ab?(cd)?")
    assert ids(mask, b"") == {ord("a")}
    assert ids(mask, b"a") == {ord("b"), ord("c"), END}
    assert ids(mask, b"abc") == {ord("d")}, "several at once"
    assert ids(mask, b"a") == {ord("b"), ord("c"), END}, "fewer than before"
    assert ids(mask, b"ac") == {ord("d")}, "others than before"
    assert (mask.may_end(b"a"), mask.must_end(b"a")) == (True, False)
    assert (mask.may_end(b"acd"), mask.must_end(b"acd")) == (True, True)
    assert not mask.may_end(b"ac")


def test_what_another_instance_has_generated_counts() -> None:
    mask = mask_of("[0-9]{3}", b"12")
    assert ids(mask, b"") == set(b"0123456789")
    assert mask.must_end(b"3")


def test_an_id_that_may_not_come() -> None:
    mask = mask_of("ab")
    with pytest.raises(EngineFailed, match="cannot be followed"):
        mask.allowed(b"z")
    assert ids(mask, b"a") == {ord("b")}


@pytest.mark.parametrize("size", [100, 257, 300])
@pytest.mark.parametrize("make", [list, lambda row: np.array(row, np.float32)])
def test_logits_are_masked_in_place(size: int, make: Any) -> None:
    row = [float(index) for index in range(size)]
    logits = make(row)
    mask_of("[ab]c").apply(logits, b"")
    for index, value in enumerate(row):
        assert float(logits[index]) == (value if index in (97, 98) else -math.inf)


def test_logits_of_several_positions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"the shape \(2, 300\)"):
        mask_of("a").apply(np.zeros((2, 300)), b"")


def test_json_by_the_mask_alone() -> None:
    grammars = Grammars(_Bytes, (END,))
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    mask = AnswerMask(lambda: grammars.matcher(Grammar("json", json.dumps(schema))))
    said: list[int] = []
    while not mask.must_end(said):
        logits = np.zeros(257)
        logits[ord(" ")] = logits[ord("\n")] = logits[ord("\t")] = -1.0
        mask.apply(logits, said)
        said.append(int(logits.argmax()))
    assert json.loads(bytes(said)) == {"a": 1}
