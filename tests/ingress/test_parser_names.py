"""Which parsers a model has: those that its card names, else those that its chat template shows."""

from pathlib import Path

import msgspec
import pytest

from dynamod import sample
from dynamod.ingress.parsing import ModelParsers
from dynamod.preprocess.card import read_card
from dynamod.preprocess.model import Model


@pytest.mark.parametrize(
    ("tool", "reasoning", "names"),
    [
        ("", "", ("hermes", "basic")),
        ("auto", "auto", ("hermes", "basic")),
        ("hf", "response_template", ("hermes", "basic")),
        ("none", "auto", ("none", "basic")),
        ("glm47", "none", ("glm47", "none")),
        ("of-a-later-version", "auto", ("none", "none")),
    ],
)
def test_names_of_a_card(tmp_path: Path, tool: str, reasoning: str, names: tuple[str, str]) -> None:
    for file in sample.path("sample").glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ '<tool_call>' }}{{ content.split('</think>') }}")
    model = Model.load(read_card(tmp_path, name="m"))
    card = msgspec.structs.replace(model.card, tool_call_parser=tool, reasoning_parser=reasoning)
    used = ModelParsers(card, model).card
    assert (used.tool_call_parser, used.reasoning_parser) == names
