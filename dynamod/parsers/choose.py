"""The parsers of a model for which nobody has named any, by its chat template and its model type."""

import re

from .grammars import grammar_class
from .thinking import thinking_of

_TOOLS = (
    ("<｜DSML｜", "deepseek_v3_2"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|open|>", "kimi_k3"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("]<]minimax[>[", "minimax_m3"),
    ("<|START_ACTION|>", "cohere_command"),
    ("<|tools_prefix|>", "apertus"),
    ("<start_function_call>", "functiongemma"),
    ("<steptml:", "step3"),
    ("<|action_start|>", "internlm"),
    ("<|function_call|>", "gigachat3"),
    ("function call<|role_sep|>", "gigachat3"),
    ("<seed:tool_call>", "seed_oss"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<longcat_tool_call>", "longcat"),
    ("<|tool_call>", "gemma4"),
    ("[TOOL_CALLS]", "mistral"),
    ("<TOOLCALL>", "nemotron_deci"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<function_calls>", "olmo3"),
    ("functools[", "phi4"),
    ("<tool_calls>", "jamba"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ("<|python_tag|>", "llama3_json"),
)
_REASONING = (
    ("[THINK]", "mistral"),
    ("◁think▷", "kimi"),
    ("<|channel>", "gemma4"),
    ("<seed:think>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<mm:think>", "minimax_m3"),
    ("<|START_THINKING|>", "cohere_command"),
    ("<|inner_prefix|>", "apertus"),
    ("<|open|>think", "kimi_k3"),
    ("Here is my thought process", "granite"),
)
_PROMPT_THINKS = re.compile(r"add_generation_prompt(?:(?!</think>).)*<think>(?!(?:\\n|\s)*</think>)", re.DOTALL)


NONE = "none"
"""In place of a parser's name: text stays as it is."""


def check_names(tool: str, reasoning: str) -> None:
    """Names that people have given, empty where they gave none. Raises UserError that lists the known ones."""
    if tool and tool != NONE:
        grammar_class(tool)
    if reasoning and reasoning != NONE:
        thinking_of(reasoning)


def choose(chat_template: str, model_type: str = "") -> tuple[str | None, str | None]:
    """Names of the tool call parser and the reasoning parser; None where the template shows no such format.

    `model_type`: as config.json has it (`qwen3`, `gpt_oss`, ...); "" when it is not known.
    """
    if model_type == "gpt_oss" or ("<|channel|>" in chat_template and "<|message|>" in chat_template):
        return "harmony", "gpt_oss"
    return _tool(chat_template, model_type), _reasoning(chat_template)


def _tool(template: str, model_type: str) -> str | None:
    if "<｜tool▁calls▁begin｜>" in template:
        return "deepseek_v3" if "```json" in template else "deepseek_v3_1"
    for word, name in _TOOLS:
        if word in template:
            return name
    if model_type == "llama4" and "tools" in template:
        return "llama4_pythonic"
    if '"parameters":' in template and "ipython" in template:
        return "llama3_json"
    return None


def _reasoning(template: str) -> str | None:
    for word, name in _REASONING:
        if word in template:
            return name
    if "</think>" not in template:
        return None
    return "deepseek_r1" if _PROMPT_THINKS.search(template) else "basic"
