"""A sliding window, with all cells kept and without: the sample's weights under an architecture that has one."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest.importorskip("llama_cpp", reason="needs the extra llama_cpp")

from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.llamacpp.engine import LlamaCpp
from dynamod.message.ingress import Logprobs
from dynamod.message.worker import Sampling

from ... import state_models
from .exchange import Engines, Exported, asked, heard, noise, put, three

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every second layer sees the last 32 tokens alone."""
    return state_models.windowed(tmp_path_factory.mktemp("models") / "windowed.gguf")


class Windowed:
    """Workers of the windowed model."""

    def __init__(self, words: Any, system: System, path: Path) -> None:
        self._words, self._system, self._path = words, system, path

    async def serve(self, name: str, **arguments: Any) -> Any:
        options = EngineOptions("m", self._path, arguments=arguments)
        return await self._words.House(self._system, LlamaCpp, options).start(name)

    def ask(self, house: Any, prompt: list[int]) -> Any:
        """The same token over and over, so that a near tie cannot make another text of it."""
        sampling = Sampling(temperature=0.0, logprobs=0, logit_bias={77: 100.0})
        request = self._words.generate(prompt, max_tokens=60, ignore_eos=True)
        return house.ask(msgspec.structs.replace(request, sampling=sampling))


async def test_without_all_cells_the_prefix_cache_is_off_and_answers_are_right(words: Any, windowed: Path) -> None:
    async with System() as system:
        use = Windowed(words, system, windowed)
        house = await use.serve("plenty", swa_full=False)
        few = await use.serve("few", swa_full=False, num_blocks=20, max_num_seqs=6)
        assert not house.published[0].capabilities.kv_events
        assert house.published[0].capabilities.exact_continuation
        prompts = [[(37 * number + (number + 3) * n * n) % 900 for n in range(61)] for number in range(6)]
        alone = [seen(await use.ask(house, prompt).wait(30)) for prompt in prompts]
        assert max(abs(one - other) for one, other in zip(*alone[:2], strict=True)) > 0.1, "prompts make a difference"
        assert seen(await use.ask(house, prompts[0]).wait(30)) == pytest.approx(alone[0], abs=1e-6)
        assert house.workers[-1]._engine.statistics().hit_rate == 0
        together = [use.ask(few, prompt) for prompt in prompts]
        for answer, wanted in zip(together, alone, strict=True):
            assert seen(await answer.wait(30)) == pytest.approx(wanted, abs=0.05)
        assert few.workers[-1]._engine.statistics().preemptions > 0


async def test_blocks_go_to_another_worker_behind_a_window(words: Any, windowed: Path) -> None:
    engines = Engines(words)
    try:
        alone, prefill, decode = await three(engines, windowed, flash_attn="off")
        for seed in range(4):
            request = asked(noise(seed, 70 + 60 * seed), logit_bias={77: 100.0})
            held, answer = engines.hold(decode, request)
            assert put(held, await Exported(prefill, request).wait())
            held.go()
            assert heard(await answer.wait()) == heard(await engines.ask(alone, request).wait())
        assert decode.statistics().imported_blocks == 4 + 8 + 11 + 15
        assert prefill.card().capabilities.stored_blocks
    finally:
        await engines.close()


async def test_prefixes_are_shared_behind_a_window(words: Any, windowed: Path) -> None:
    async with System() as system:
        use = Windowed(words, system, windowed)
        off, on = await use.serve("off", enable_prefix_caching=False), await use.serve("on")
        assert on.published[0].capabilities.kv_events
        assert not off.published[0].capabilities.kv_events
        shared = [(3 * n * n + 11 * n) % 900 for n in range(400)]
        prompts = [shared + [(37 * number + n) % 900 for n in range(30)] for number in range(5)]
        wanted = [seen(await use.ask(off, prompt).wait(30)) for prompt in prompts]
        first = [seen(await use.ask(on, prompt).wait(30)) for prompt in prompts]
        together = [use.ask(on, prompt) for prompt in prompts]
        again = [seen(await answer.wait(30)) for answer in together]
        for one, two, three in zip(wanted, first, again, strict=True):
            assert two == pytest.approx(one, abs=0.05)
            assert three == pytest.approx(one, abs=0.05)
        assert on.workers[-1]._engine.statistics().hit_rate > 0.8


def seen(answer: Any) -> list[float]:
    """The log probabilities of an answer's tokens."""
    assert answer.finish == "length"
    return [value for delta in answer.deltas if isinstance(delta, Logprobs) for value in delta.chosen]
