"""The grammars of tool calls by the names people type. A grammar's module is imported at its first use."""

import importlib
from typing import TYPE_CHECKING

from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from .base import Grammar

GRAMMARS = {
    "hermes": f"{__name__}.json_tags:Hermes",
    "granite": f"{__name__}.json_tags:Granite",
    "jamba": f"{__name__}.json_tags:Jamba",
    "nemotron_deci": f"{__name__}.json_tags:NemotronDeci",
    "longcat": f"{__name__}.json_tags:Longcat",
    "llama3_json": f"{__name__}.json_bare:Llama3",
    "default": f"{__name__}.json_bare:Default",
    "phi4": f"{__name__}.json_bare:Phi4",
    "mistral": f"{__name__}.mistral:Mistral",
    "pythonic": f"{__name__}.pythonic:Pythonic",
    "llama4_pythonic": f"{__name__}.pythonic:Llama4",
    "lfm2": f"{__name__}.pythonic:Lfm2",
    "olmo3": f"{__name__}.pythonic:Olmo3",
    "qwen3_coder": f"{__name__}.function_tags:Qwen3Coder",
    "mimo": f"{__name__}.function_tags:Mimo",
    "seed_oss": f"{__name__}.function_tags:SeedOss",
    "glm45": f"{__name__}.glm:Glm",
    "minimax_m2": f"{__name__}.invoke:Minimax",
    "deepseek_v3": f"{__name__}.deepseek:DeepseekV3",
    "deepseek_v3_1": f"{__name__}.deepseek:DeepseekV31",
    "deepseek_v3_2": f"{__name__}.dsml:Dsml",
    "kimi_k2": f"{__name__}.kimi:Kimi",
    "harmony": f"{__name__}.harmony:Harmony",
    "gemma4": f"{__name__}.gemma:Gemma",
    "functiongemma": f"{__name__}.gemma:FunctionGemma",
    "internlm": f"{__name__}.json_tags:Internlm",
    "gigachat3": f"{__name__}.json_tags:Gigachat",
    "cohere_command": f"{__name__}.json_tags:Cohere",
    "apertus": f"{__name__}.json_tags:Apertus",
    "xlam": f"{__name__}.json_bare:Xlam",
    "step3": f"{__name__}.invoke:Step3",
    "kimi_k3": f"{__name__}.dsml:KimiK3",
    "minimax_m3": f"{__name__}.nested:MinimaxM3",
    "hunyuan": f"{__name__}.glm:Hunyuan",
    "iquest_q1": f"{__name__}.glm:Iquest",
    "k2_horizon": f"{__name__}.glm:K2Horizon",
    "solar_open2": f"{__name__}.glm:Solar",
    "deepseek_v4_1": f"{__name__}.dsml:DsmlSpaced",
    "gigachat35": f"{__name__}.dsml:Gcml",
    "dots": f"{__name__}.invoke:Dots",
    "minicpm5": f"{__name__}.invoke:MiniCpm",
    "granite_20b_fc": f"{__name__}.json_tags:Granite20b",
    "plamo3": f"{__name__}.plamo:Plamo",
    "inkling": f"{__name__}.inkling:Inkling",
    "muse_glimmer": f"{__name__}.channels:Muse",
    "beam": f"{__name__}.channels:Beam",
}
"""Own name -> module and class."""

ALIASES = {
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen3": "hermes",
    "granite4": "hermes",
    "ernie45": "hermes",
    "qwen3_json": "hermes",
    "trinity": "hermes",
    "hunyuan_a13b": "jamba",
    "hy_v3": "hunyuan",
    "hy_v4": "hunyuan",
    "llama3": "llama3_json",
    "llama4_json": "llama3_json",
    "phi4_mini_json": "phi4",
    "nemotron_nano": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "nanbeige": "qwen3_coder",
    "interns1": "internlm",
    "muse": "muse_glimmer",
    "glm": "glm45",
    "glm47": "glm45",
    "ling3": "glm45",
    "poolside_v1": "glm45",
    "spark25": "glm45",
    "minimax": "minimax_m2",
    "deepseekv3": "deepseek_v3",
    "deepseek_v31": "deepseek_v3_1",
    "deepseekv31": "deepseek_v3_1",
    "deepseek_v32": "deepseek_v3_2",
    "deepseekv32": "deepseek_v3_2",
    "deepseek_v4": "deepseek_v3_2",
    "deepseek_v41": "deepseek_v4_1",
    "deepseekv41": "deepseek_v4_1",
    "deepseekv4": "deepseek_v3_2",
    "kimi_k25": "kimi_k2",
    "cohere_command3": "cohere_command",
    "cohere_command4": "cohere_command",
    "apertus2509": "apertus",
    "minimax_m3_nom": "minimax_m3",
    "openai": "harmony",
    "gpt_oss": "harmony",
    "gemma_4": "gemma4",
}
"""Name of Dynamo, vLLM or SGLang -> own name."""


def grammar_class(name: str) -> "type[Grammar]":
    """The grammar for a name or alias, `-` read as `_`. Raises UserError that lists the known ones."""
    plain = name.replace("-", "_").lower()
    plain = ALIASES.get(plain, plain)
    if plain not in GRAMMARS:
        known = sorted({*GRAMMARS, *ALIASES})
        raise UserError(f"unknown tool call parser '{name}'", f"known parsers: {', '.join(known)}")
    module, _, attribute = GRAMMARS[plain].partition(":")
    found: type[Grammar] = getattr(importlib.import_module(module), attribute)
    return found
