"""Writers of every format, from its public description: a name and arguments become the text that a model writes."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dynamod.parsers import ToolSpec

TOOLS = [
    ToolSpec(
        "find",
        {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "exact": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
    ),
    ToolSpec("now"),
]
Asked = tuple[str, dict[str, Any]]


class Format(NamedTuple):
    """`calls`: the text of several calls. `tool`, `reasoning`: the parsers' names. `think`: the markers around it.

    `bare`: calls have no marker, so that nothing may be in front of them but reasoning. `say`: the text of an answer.
    `mark`: what stands in front of each tag of calls, which is none without it.
    """

    tool: str
    calls: Callable[[Sequence[Asked]], str]
    reasoning: str = "qwen3"
    think: tuple[str, str] = ("<think>", "</think>")
    bare: bool = False
    say: str = "{}"
    mark: str = ""


def plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def each(pattern: Callable[[str, dict[str, Any]], str], front: str = "", back: str = "", between: str = "\n"):
    return lambda calls: front + between.join(pattern(name, arguments) for name, arguments in calls) + back


def body(name: str, arguments: dict[str, Any], key: str = "arguments") -> str:
    return json.dumps({"name": name, key: arguments})


def dsml(name: str, arguments: dict[str, Any]) -> str:
    mark = "｜DSML｜"
    inner = "".join(
        f'<{mark}parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{plain(value)}</{mark}parameter>\n"
        for key, value in arguments.items()
    )
    return f'<{mark}invoke name="{name}">\n{inner}</{mark}invoke>'


def qwen(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(f"<parameter={key}>\n{plain(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def glm(name: str, arguments: dict[str, Any], line: str = "\n") -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{plain(value)}</arg_value>{line}" for key, value in arguments.items()
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


def minimax(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(f'<parameter name="{key}">{plain(value)}</parameter>\n' for key, value in arguments.items())
    return f'<invoke name="{name}">\n{inner}</invoke>'


def python(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def gemma_value(value: object) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, list):
        return f"[{','.join(map(gemma_value, value))}]"
    return json.dumps(value)


def gemma(name: str, arguments: dict[str, Any]) -> str:
    inner = ",".join(f"{key}:{gemma_value(value)}" for key, value in arguments.items())
    return f"<|tool_call>call:{name}{{{inner}}}<tool_call|>"


def kimi(calls: Sequence[Asked]) -> str:
    inner = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{json.dumps(arguments)}<|tool_call_end|>"
        for number, (name, arguments) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{inner}<|tool_calls_section_end|>"


def gemma_function(name: str, arguments: dict[str, Any]) -> str:
    text = gemma(name, arguments).replace('<|"|>', "<escape>")
    return text.replace("<|tool_call>", "<start_function_call>").replace("<tool_call|>", "<end_function_call>")


def k3(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f'<|open|>argument key="{key}" type="{"string" if isinstance(value, str) else "object"}"<|sep|>'
        f"{plain(value)}<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="1"<|sep|>{inner}<|close|>call<|sep|>'


def step3(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f'<steptml:parameter name="{key}">{plain(value)}</steptml:parameter>' for key, value in arguments.items()
    )
    tags = f'<steptml:invoke name="{name}">{inner}</steptml:invoke>'
    return f"<｜tool_call_begin｜>function<｜tool_sep｜>{tags}<｜tool_call_end｜>"


M3 = "]<]minimax[>["


def m3_value(value: object) -> str:
    if isinstance(value, list) and value:
        return "".join(f"{M3}<item>{m3_value(item)}{M3}</item>" for item in value)
    return plain(value)


def m3(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(f"{M3}<{key}>{m3_value(value)}{M3}</{key}>" for key, value in arguments.items())
    return f'{M3}<invoke name="{name}">{inner}{M3}</invoke>'


def listed(front: str, back: str) -> Callable[[Sequence[Asked]], str]:
    return each(body, f"{front}[", f"]{back}", ", ")


V3 = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
V3_CALL = "<｜tool▁call▁begin｜>{}<｜tool▁call▁end｜>"
SEP = "<｜tool▁sep｜>"

FORMATS = {
    "hermes": Format("hermes", each(lambda *call: f"<tool_call>\n{body(*call)}\n</tool_call>")),
    "granite": Format(
        "granite", listed("<|tool_call|>", ""), "granite", ("Here is my thought process:", "Here is my response:")
    ),
    "jamba": Format("jamba", listed("<tool_calls>", "</tool_calls>")),
    "nemotron_deci": Format("nemotron_deci", listed("<TOOLCALL>", "</TOOLCALL>")),
    "longcat": Format("longcat", each(lambda *call: f"<longcat_tool_call>{body(*call)}</longcat_tool_call>")),
    "llama3_json": Format("llama3_json", each(lambda *call: body(*call, "parameters"), between="; "), bare=True),
    "llama3_json tag": Format(
        "llama3_json", each(lambda *call: body(*call, "parameters"), "<|python_tag|>", between=";")
    ),
    "phi4": Format("phi4", listed("functools", "")),
    "phi4 bare": Format("phi4", listed("", ""), bare=True),
    "mistral list": Format("mistral", listed("[TOOL_CALLS]", "</s>"), "mistral", ("[THINK]", "[/THINK]")),
    "mistral names": Format(
        "mistral",
        each(lambda name, arguments: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments)}", between=""),
        "mistral",
        ("[THINK]", "[/THINK]"),
    ),
    "mistral ids": Format(
        "mistral",
        lambda calls: "".join(
            f"[TOOL_CALLS]{name}[CALL_ID]id{number}[ARGS]{json.dumps(arguments)}"
            for number, (name, arguments) in enumerate(calls)
        ),
    ),
    "mistral plain": Format("mistral", each(lambda name, given: f"[TOOL_CALLS]{name}{json.dumps(given)}", between="")),
    "pythonic": Format("pythonic", each(python, "[", "]", ", "), bare=True),
    "llama4_pythonic": Format("llama4_pythonic", each(python, "<|python_start|>[", "]<|python_end|>", ", ")),
    "lfm2": Format("lfm2", each(python, "<|tool_call_start|>[", "]<|tool_call_end|>", ", ")),
    "olmo3": Format("olmo3", each(python, "<function_calls>", "</function_calls>")),
    "qwen3_coder": Format("qwen3_coder", each(lambda *call: f"<tool_call>\n{qwen(*call)}\n</tool_call>")),
    "qwen3_coder plain": Format("qwen3_coder", each(qwen)),
    "qwen3_coder together": Format("qwen3_coder", each(qwen, "<tool_call>", "</tool_call>")),
    "seed_oss": Format(
        "seed_oss",
        each(qwen, "<seed:tool_call>\n", "\n</seed:tool_call>"),
        "seed_oss",
        ("<seed:think>", "</seed:think>"),
    ),
    "glm45": Format("glm45", each(glm), "glm45"),
    "glm47": Format("glm47", each(lambda *call: glm(*call, ""), between=""), "glm47"),
    "minimax_m2": Format("minimax_m2", each(minimax, "<minimax:tool_call>\n", "\n</minimax:tool_call>"), "basic"),
    "deepseek_v3_2": Format(
        "deepseek_v3_2", each(dsml, "<｜DSML｜function_calls>\n", "\n</｜DSML｜function_calls>"), "deepseek_v3_2"
    ),
    "deepseek_v4": Format(
        "deepseek_v4", each(dsml, "<｜DSML｜tool_calls>\n", "\n</｜DSML｜tool_calls>"), "deepseek_v4"
    ),
    "deepseek_v3": Format(
        "deepseek_v3",
        each(lambda name, given: V3_CALL.format(f"function{SEP}{name}\n```json\n{json.dumps(given)}\n```"), *V3),
    ),
    "deepseek_v3_1": Format(
        "deepseek_v3_1", each(lambda name, given: V3_CALL.format(f"{name}{SEP}{json.dumps(given)}"), *V3, between="")
    ),
    "kimi_k2": Format("kimi_k2", kimi, "kimi", ("◁think▷", "◁/think▷")),
    "gemma4": Format("gemma4", each(gemma, between=""), "gemma4", ("<|channel>thought\n", "<channel|>")),
    "functiongemma": Format("functiongemma", each(gemma_function, between="")),
    "internlm": Format(
        "internlm", each(lambda *call: f"<|action_start|><|plugin|>\n{body(*call, 'parameters')}<|action_end|>\n")
    ),
    "gigachat3": Format("gigachat3", each(lambda *call: f"<|function_call|>{body(*call)}")),
    "gigachat3 turn": Format(
        "gigachat3", each(lambda *call: f"<|message_sep|>\n\nfunction call<|role_sep|>\n{body(*call)}")
    ),
    "cohere_command": Format(
        "cohere_command",
        lambda calls: (
            "<|START_ACTION|>[\n"
            + ",\n".join(
                json.dumps({"tool_call_id": str(number), "tool_name": name, "parameters": given})
                for number, (name, given) in enumerate(calls)
            )
            + "\n]<|END_ACTION|>"
        ),
        "cohere_command3",
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        say="<|START_RESPONSE|>{}<|END_RESPONSE|>",
    ),
    "apertus": Format(
        "apertus",
        each(lambda name, given: json.dumps({name: given}), "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
        "apertus",
        ("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "xlam": Format("xlam", listed("", ""), bare=True),
    "xlam code": Format("xlam", listed("```json\n", "\n```"), bare=True),
    "xlam marker": Format("xlam", listed("[TOOL_CALLS]", "")),
    "step3": Format("step3", each(step3, "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"), "basic"),
    "kimi_k3": Format(
        "kimi_k3",
        each(k3, "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", ""),
        "kimi_k3",
        ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
        say="<|open|>response<|sep|>{}<|close|>response<|sep|>",
    ),
    "minimax_m3": Format(
        "minimax_m3",
        each(m3, f"{M3}<tool_call>\n", f"\n{M3}</tool_call>"),
        "minimax_m3",
        ("<mm:think>", "</mm:think>"),
        mark=M3,
    ),
    "harmony": Format(
        "harmony",
        each(
            lambda name, given: (
                "<|start|>assistant<|channel|>commentary to=functions."
                + name
                + " <|constrain|>json<|message|>"
                + json.dumps(given)
                + "<|call|>"
            ),
            between="",
        ),
        "gpt_oss",
        ("<|channel|>analysis<|message|>", "<|end|>"),
        say="<|start|>assistant<|channel|>final<|message|>{}<|end|>",
    ),
}
