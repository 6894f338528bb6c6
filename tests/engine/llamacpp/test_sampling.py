"""The sampler against a plain one, and what its draws look like in the long run."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamod.engine.llamacpp.sampling import Sampler, _nucleus, gumbel
from dynamod.message.worker import Sampling

COUNT = 12


def plain(
    row: list[float],
    sampling: Sampling,
    seed: int,
    prompt: list[int],
    output: list[int],
    forbidden: set[int],
    least: int,
) -> int:
    """The next token, as the rules say it, one number after the other."""
    logits = {index: float(np.float32(value)) for index, value in enumerate(row)}
    for index, bias in (sampling.logit_bias or {}).items():
        logits[index] += bias
    if len(output) < least:
        for index in forbidden:
            logits[index] = -math.inf
    for index in logits:
        if index in prompt or index in output:
            factor = sampling.repetition_penalty or 1.0
            logits[index] = logits[index] / factor if logits[index] > 0 else logits[index] * factor
        times = output.count(index)
        if times:
            logits[index] -= times * (sampling.frequency_penalty or 0) + (sampling.presence_penalty or 0)
    temperature = 1.0 if sampling.temperature is None else sampling.temperature
    best = max(logits, key=lambda index: (logits[index], -index))
    if temperature < 1e-5:
        return best
    alive = {index: (value - logits[best]) / temperature for index, value in logits.items() if value > -math.inf}
    if sampling.min_p:
        alive = {index: value for index, value in alive.items() if math.exp(value) >= sampling.min_p * (1 - 1e-12)}
    if sampling.top_k and sampling.top_k > 0:
        bound = sorted(alive.values(), reverse=True)[: sampling.top_k][-1]
        alive = {index: value for index, value in alive.items() if value >= bound}
    if sampling.top_p is not None and sampling.top_p < 1:
        total, sum_before = sum(map(math.exp, alive.values())), 0.0
        kept: dict[int, float] = {}
        for index in sorted(alive, key=lambda index: (-alive[index], index)):
            if kept and sum_before >= sampling.top_p * total:
                break
            kept[index] = alive[index]
            sum_before += math.exp(alive[index])
        alive = kept
    noise = gumbel(seed, len(output), np.arange(len(row)))
    return max(alive, key=lambda index: alive[index] + noise[index])


# Numbers that float32 holds exactly, whatever is done to them: the plain sampler has float64, and ties must stay ties.
_LOGITS = st.lists(st.integers(-512, 512).map(lambda value: value / 64), min_size=COUNT, max_size=COUNT, unique=True)
_IDS = st.lists(st.integers(0, COUNT - 1), max_size=6)
_SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([None, 0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([None, -1, 0, 1, 3, 11, 50]),
    top_p=st.sampled_from([None, 0.0, 0.001, 0.503, 0.917, 1.0]),
    min_p=st.sampled_from([None, 0.0, 0.103, 1.0]),
    repetition_penalty=st.sampled_from([None, 1.0, 0.5, 2.0]),
    presence_penalty=st.sampled_from([None, 0.0, -1.5, 2.0]),
    frequency_penalty=st.sampled_from([None, 0.0, 0.75]),
    logit_bias=st.none() | st.dictionaries(st.integers(0, COUNT - 1), st.sampled_from([-100.0, -1.0, 3.0]), max_size=3),
)


@given(_LOGITS, _SETTINGS, st.integers(-(2**63), 2**63 - 1), _IDS, _IDS, st.integers(0, 8))
def test_it_chooses_what_the_plain_one_does(
    row: list[float], sampling: Sampling, seed: int, prompt: list[int], output: list[int], least: int
) -> None:
    forbidden = {2, 5}
    half = len(output) // 2
    sampler = Sampler(
        sampling, COUNT, seed=seed, prompt=prompt, output=output[:half], forbidden=forbidden, min_tokens=least
    )
    for index in output[half:]:
        sampler.take(index)
    logits = np.array(row, np.float32)
    before = logits.copy()
    wanted = plain(row, sampling, seed, prompt, output, forbidden, least)
    assert sampler.pick(logits).index == wanted
    assert (logits == before).all(), "the row is llama.cpp's"
    if sampler.plain:
        assert int(logits.argmax()) == wanted


def draws(sampling: Sampling, row: list[float], count: int = 4000, **more: Any) -> list[int]:
    sampler = Sampler(sampling, len(row), seed=7, **more)
    logits = np.array(row, np.float32)
    found = []
    for _ in range(count):
        found.append(sampler.pick(logits).index)
        sampler.take(found[-1])
    return found


def test_draws_come_as_often_as_they_should() -> None:
    weights = np.array([0.5, 0.25, 0.15, 0.07, 0.03])
    found = np.bincount(draws(Sampling(), list(np.log(weights))), minlength=5) / 4000
    assert np.abs(found - weights).max() < 0.03
    assert set(draws(Sampling(top_k=2), list(np.log(weights)))) == {0, 1}
    assert set(draws(Sampling(top_p=0.8), list(np.log(weights)))) == {0, 1, 2}
    assert set(draws(Sampling(min_p=0.4), list(np.log(weights)))) == {0, 1}
    sharp = np.bincount(draws(Sampling(temperature=0.5), list(np.log(weights))), minlength=5) / 4000
    assert np.abs(sharp - weights**2 / (weights**2).sum()).max() < 0.03


def test_draws_of_a_large_vocabulary_come_as_often_as_they_should() -> None:
    """Four likely ids, in one block of ids and in others, beside a tail that is as likely as they are together."""
    size, likely, count = 20_000, [3, 5, 9_000, 19_999], 6000
    weights = np.full(size, 0.5 / (size - 4))
    weights[likely] = [0.25, 0.1, 0.1, 0.05]
    found = draws(Sampling(temperature=0.5), list(np.log(weights) / 2), count)
    expected = [1500, 600, 600, 300, 3000]
    seen = [found.count(index) for index in likely]
    chi2 = sum((a - b) ** 2 / b for a, b in zip([*seen, count - sum(seen)], expected, strict=True))
    assert chi2 < 18.5, "one in a thousand is larger"
    tail = np.array([index for index in found if index not in likely])
    thirds = np.bincount(tail * 3 // size, minlength=3)
    assert ((thirds - len(tail) / 3) ** 2 / (len(tail) / 3)).sum() < 13.8
    assert len(set(tail)) > 0.9 * len(tail)


@pytest.mark.parametrize("size", [257, 1000])
def test_draws_of_a_large_vocabulary_are_of_seed_and_position_alone(size: int) -> None:
    row = [math.sin(index) * 3 for index in range(size)]
    whole = draws(Sampling(), row, 200)
    assert whole[50:] == draws(Sampling(), row, 150, output=whole[:50]), "who goes on with it elsewhere"
    row[7] += 1e-4
    other = draws(Sampling(), row, 200)
    assert sum(a != b for a, b in zip(whole, other, strict=True)) <= 1, "a small error of a logit rarely shows"
    banned = draws(Sampling(logit_bias=dict.fromkeys(range(size - 1), -math.inf)), row, 3)
    assert banned == [size - 1] * 3


@pytest.mark.parametrize("scale", [0.0, 0.5, 4.0])
def test_a_nucleus_of_a_large_vocabulary_is_that_of_the_sorted_one(scale: float) -> None:
    values = np.random.default_rng(1).normal(0, scale, 5000)
    values[17] = values[4000]
    weights = np.exp(values)
    for top_p in (0.01, 0.5, 0.99):
        order = sorted(range(5000), key=lambda index: (-values[index], index))
        before = np.cumsum(weights[order]) - weights[order]
        wanted = [index for index, sum_before in zip(order, before, strict=True) if sum_before < top_p * weights.sum()]
        found = _nucleus(values, top_p)
        assert abs(len(found) - len(wanted)) <= 1, "sums of floats in another order"
        assert found.tolist()[: len(wanted)] == wanted[: len(found)]


def test_noise_is_of_seed_position_and_id_alone() -> None:
    ids = np.arange(2000)
    noise = gumbel(1, 5, ids)
    assert (gumbel(1, 5, ids[::-1]) == noise[::-1]).all(), "who else is a candidate does not matter"
    others = [gumbel(2, 5, ids), gumbel(1, 6, ids), gumbel(-1, 5, ids), gumbel(1 + 2**40, 5, ids)]
    for other in others:
        assert abs(np.corrcoef(noise, other)[0, 1]) < 0.1
    assert abs(noise.mean() - 0.5772) < 0.1
    assert abs(noise.var() - math.pi**2 / 6) < 0.2
    assert np.isfinite(noise).all()


def test_an_answer_goes_on_elsewhere_with_the_same_draws() -> None:
    row = [0.1 * index for index in range(40)]
    whole = draws(Sampling(temperature=1.5, repetition_penalty=1.1, presence_penalty=0.5), row, 60)
    for cut in (1, 17, 59):
        rest = draws(
            Sampling(temperature=1.5, repetition_penalty=1.1, presence_penalty=0.5), row, 60 - cut, output=whole[:cut]
        )
        assert whole[:cut] + rest == whole


def test_logprobs_are_of_the_raw_logits() -> None:
    row = np.array([0.0, 2.0, 1.0, -1.0], np.float32)
    values = row - np.log(np.exp(row).sum())
    sampler = Sampler(Sampling(temperature=0.0, logprobs=2, logit_bias={3: 100.0}), 4, seed=0)
    picked = sampler.pick(row)
    assert picked.index == 3
    assert picked.logprob == pytest.approx(values[3], abs=1e-6)
    assert [index for index, _ in picked.top] == [1, 2]
    assert [value for _, value in picked.top] == pytest.approx([values[1], values[2]], abs=1e-6)
    assert Sampler(Sampling(logprobs=0, temperature=0.0), 4, seed=0).pick(row).top == ()
    assert len(Sampler(Sampling(logprobs=20, temperature=0.0), 4, seed=0).pick(row).top) == 4


def test_a_row_without_numbers_is_said() -> None:
    for value in (np.nan, -np.inf):
        with pytest.raises(ValueError, match="no number"):
            Sampler(Sampling(temperature=0.0), 3, seed=0).pick(np.full(3, value, np.float32))
