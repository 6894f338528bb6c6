"""Tools and thoughts of the sample model, from the command to OpenAI's client."""

from typing import Any

from .tools import use_a_tool


def test_a_graph_with_a_text_engine(machine: Any) -> None:
    command = machine.start(
        *("dynamo", "serve", "graphs.agg:Frontend", "-f", "configs/agg.yaml", "--Frontend.port=0"),
        "--Worker.reasoning_parser=basic",
    )
    use_a_tool(command.ready())


def test_an_unknown_parser_is_refused_with_the_names(machine: Any) -> None:
    words = ("in=http", "out=mocker", "sample", "--http-port", 0)
    line = machine.run("dynamo-run", *words, "--tool-call-parser", "hermse").mistake()
    assert "hermse" in line
    assert "hermes" in line
    line = machine.run("dynamo-run", *words, "--dyn-reasoning-parser", "qwen33").mistake()
    assert "qwen33" in line
    assert "qwen3" in line
