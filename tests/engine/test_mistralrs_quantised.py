"""The real mistral.rs with the sample's weights quantised: prompts that come at the same time, and shared prefixes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from gguf.quants import quantize

from dynamod import sample
from dynamod.actor import System
from dynamod.engine.base import EngineOptions
from dynamod.engine.mistralrs import MistralRs

pytestmark = pytest.mark.engine

BLOCK = 32
QUESTIONS = [f"What is the capital of {country}?" for country in ("France", "Spain", "Germany", "Japan", "Italy")]
LONG = " ".join(f"word{number}" for number in range(200))


def write_q8(source: Path, target: Path) -> Path:
    """The same model with its matrices as Q8_0."""
    reader = GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        writer.add_key_value(name, field.contents(), kind, field.types[-1] if kind is GGUFValueType.ARRAY else None)
    writer.add_file_type(7)
    for tensor in reader.tensors:
        if len(tensor.shape) == 2 and tensor.shape[0] % BLOCK == 0:
            data = quantize(np.asarray(tensor.data, np.float32), GGMLQuantizationType.Q8_0)
            writer.add_tensor(tensor.name, data, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(tensor.name, np.asarray(tensor.data, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.fixture(scope="module")
def q8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_q8(sample.path("sample.gguf"), tmp_path_factory.mktemp("q8") / "q8.gguf")


@pytest.fixture(params=["gguf", "in_situ_quant", "plain"])
def options(request: pytest.FixtureRequest, q8: Path) -> Iterator[EngineOptions]:
    if request.param == "gguf":
        yield EngineOptions("m", q8)
    else:
        arguments = {"in_situ_quant": "Q8_0"} if request.param == "in_situ_quant" else {}
        yield EngineOptions("m", sample.path("sample"), arguments=arguments)


async def test_prompts_at_the_same_time_are_all_answered(words: Any, options: EngineOptions) -> None:
    async with System() as system:
        house = await words.House(system, MistralRs, options).start()
        for _ in range(3):
            answers = [house.ask(words.chat(text, temperature=0, max_tokens=40)) for text in [*QUESTIONS, LONG] * 2]
            for answer in answers:
                await answer.wait(60)
            assert [answer.error for answer in answers] == [None] * len(answers)
            assert "Paris" in answers[0].text
            assert [one.text for one in answers[:6]] == [one.text for one in answers[6:]]


async def test_a_known_prefix_beside_short_prompts(words: Any) -> None:
    async with System() as system:
        house = await words.House(system, MistralRs, EngineOptions("m", sample.path("sample"))).start()
        await house.ask(words.chat(LONG, temperature=0, max_tokens=2)).wait(60)
        for number in range(10):
            texts = [f"{LONG} {number}", *QUESTIONS, LONG]
            answers = [house.ask(words.chat(text, temperature=0, max_tokens=20)) for text in texts]
            for answer in answers:
                await answer.wait(60)
            assert [answer.error for answer in answers] == [None] * len(answers)
