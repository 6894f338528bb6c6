"""The parsers of a model without named parsers, by its chat template and its model type."""

import re

from .grammars import grammar_class
from .thinking import thinking_of

_TOOLS = (
    ("<|content_invoke_tool_json|>", "inkling"),
    ("<atem:invoke", "muse_glimmer"),
    ("<rfl:parameter", "beam"),
    ("<|channel|>", "<|message|>", "harmony"),
    ("｜DSML｜ ", "deepseek_v4_1"),
    ("｜DSML｜", " calls>", "deepseek_v4_1"),
    ("｜DSML｜", "deepseek_v3_2"),
    ("｜GCML｜", "gigachat35"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("<|open|>", "kimi_k3"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("]<]minimax[>[", "minimax_m3"),
    ("<dots_function_call>", "dots"),
    ("<|START_ACTION|>", "cohere_command"),
    ("<|tools_prefix|>", "apertus"),
    ("<start_function_call>", "functiongemma"),
    ("<steptml:", "step3"),
    ("<|action_start|>", "internlm"),
    ("<|plamo:begin_tool_request", "plamo3"),
    ("<ifm|tool_call", "k2_horizon"),
    ("<|tool_call:start|>", "solar_open2"),
    ("<iquest_tool_call>", "iquest_q1"),
    ("<|function_call|>", "gigachat3"),
    ("function call<|role_sep|>", "gigachat3"),
    ("'function call'", "<|role_sep|>", "gigachat3"),
    ("<seed:tool_call>", "seed_oss"),
    ("<tool_sep", "<arg_key", "hunyuan"),
    ("<tool_calls", "<arg_key", "hunyuan"),
    ("<arg_key>", "glm45"),
    ("<function=", "qwen3_coder"),
    ("<function name=", "<param name=", "minicpm5"),
    ("<longcat_tool_call>", "longcat"),
    ("<|tool_call>", "gemma4"),
    ("[TOOL_CALLS]", "mistral"),
    ("<TOOLCALL>", "nemotron_deci"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_list_start|>", "lfm2"),
    ("<|python_start|>", "llama4_pythonic"),
    ("<function_calls>", "olmo3"),
    ("functools[", "phi4"),
    ("<tool_calls>", "jamba"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
    ("<function_call>", "granite_20b_fc"),
    ("<|python_tag|>", "llama3_json"),
)
"""Words of a template, and the parser of calls where it has them all."""

_REASONING = (
    ("<|content_thinking|>", "inkling"),
    ("<atem:invoke", "muse_glimmer"),
    ("<rfl:parameter", "beam"),
    ("<|channel|>", "<|message|>", "gpt_oss"),
    ("[THINK]", "mistral"),
    ("◁think▷", "kimi"),
    ("<|channel>", "gemma4"),
    ("<seed:think>", "seed_oss"),
    ("<minimax:tool_call>", "minimax_m2"),
    ("<mm:think>", "minimax_m3"),
    ("<|START_THINKING|>", "cohere_command"),
    ("<|inner_prefix|>", "apertus"),
    ("<|open|>", "think", "kimi_k3"),
    ("<|plamo:begin_think:plamo|>", "plamo3"),
    ("<ifm|think", "k2_horizon"),
    ("<|think:start|>", "solar_open2"),
    ("<think", "<tool_sep", "<arg_key", "hunyuan"),
    ("<think", "<tool_calls", "<arg_key", "hunyuan"),
    ("</think>", "<answer>", "hunyuan_a13b"),
    ("</think>", "<response>", "ernie45"),
    ("Here is my thought process", "granite"),
)
"""The same for reasoning."""

_PROMPT_THINKS = re.compile(r"add_generation_prompt(?:(?!</think>).)*<think>(?!(?:\\n|\s)*</think>)", re.DOTALL)


NONE = "none"
"""Instead of a parser's name: text stays as it is."""

AUTO = ("", "auto", "hf", "response_template")
"""Instead of a parser's name: the one that the chat template shows.

vLLM's `hf` and SGLang's `response_template` leave the format to the model's files too, but read another one of them.
"""


def check_names(tool: str, reasoning: str) -> None:
    """Names that people have given, empty where they gave none. Raises UserError that lists the known ones."""
    if tool not in (*AUTO, NONE):
        grammar_class(tool)
    if reasoning not in (*AUTO, NONE):
        thinking_of(reasoning)


def choose(chat_template: str, model_type: str = "") -> tuple[str | None, str | None]:
    """Names of the tool call parser and the reasoning parser; None where the template shows no such format.

    `model_type`: as config.json has it (`qwen3`, `gpt_oss`, ...); "" when it is not known.
    """
    if model_type == "gpt_oss":
        return "harmony", "gpt_oss"
    return _tool(chat_template, model_type), _reasoning(chat_template)


def _first(rules: tuple[tuple[str, ...], ...], template: str) -> str | None:
    return next((name for *words, name in rules if all(word in template for word in words)), None)


def _tool(template: str, model_type: str) -> str | None:
    if "<｜tool▁calls▁begin｜>" in template:
        return "deepseek_v3" if "```json" in template else "deepseek_v3_1"
    if found := _first(_TOOLS, template):
        return found
    if model_type == "llama4" and "tools" in template:
        return "llama4_pythonic"
    if '"parameters":' in template and "ipython" in template:
        return "llama3_json"
    return None


def _reasoning(template: str) -> str | None:
    if found := _first(_REASONING, template):
        return found
    if "</think>" not in template:
        return None
    return "deepseek_r1" if _PROMPT_THINKS.search(template) else "basic"
