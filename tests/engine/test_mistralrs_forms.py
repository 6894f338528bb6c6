"""Which forms behind reasoning mistral.rs is told, by the prompt that only its worker has rendered."""

import pytest

from dynamod import sample
from dynamod.engine.mistralrs.lowering import form
from dynamod.message.errors import BadRequest
from dynamod.message.openai import CompletionRequest
from dynamod.message.worker import Grammar
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model

FREE, OPEN, INSIDE = (Grammar("regex", "a", *markers) for markers in ((), ("<think>", "</think>"), ("", "</think>")))


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.load(read_card(sample.path("sample"), name="m"))


@pytest.mark.parametrize(
    ("given", "prompt", "wanted"),
    [
        (FREE, "hi <think>", FREE),
        (OPEN, "hi", OPEN),
        (OPEN, "hi <think>\n\n</think>\n\n", FREE),
        (INSIDE, "hi <think>\n", INSIDE),
        (INSIDE, "hi", INSIDE),
        (Grammar("regex", "a", "<|im_end|>", "</think>"), "hi", FREE),
        (Grammar("json", "{}", calls="<|im_end|>"), "hi", Grammar("json", "{}")),
    ],
)
def test_what_can_be_said(model: Model, given: Grammar, prompt: str, wanted: Grammar) -> None:
    [prepared] = model.prepare_prompts(CompletionRequest(prompt=prompt), [prompt])
    assert form(model, prepared, given) == wanted


@pytest.mark.parametrize(
    ("given", "prompt"),
    [
        (OPEN, "hi <think>\n"),
        (INSIDE, "hi <think>\n\n</think>\n\n"),
        (Grammar("regex", "a", "", "<|im_end|>"), "hi"),
    ],
)
def test_what_the_frontend_cannot_know_is_refused(model: Model, given: Grammar, prompt: str) -> None:
    [prepared] = model.prepare_prompts(CompletionRequest(prompt=prompt), [prompt])
    with pytest.raises(BadRequest, match="with mistralrs the prompt begins or ends the reasoning") as found:
        form(model, prepared, given)
    assert found.value.param == "reasoning_effort"
