"""Writers of every format, from its public description: a name and arguments become the text that a model writes."""

import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

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
    `mark`: what stands in front of each tag of calls, which is none without it. `prompt`: its end.
    """

    tool: str
    calls: Callable[[Sequence[Asked]], str]
    reasoning: str = "qwen3"
    think: tuple[str, str] = ("<think>", "</think>")
    bare: bool = False
    say: str = "{}"
    mark: str = ""
    prompt: str = ""


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


def retagged(text: str, *changes: tuple[str, str]) -> str:
    """Calls of one format with the tags of another."""
    for old, new in changes:
        text = text.replace(old, new)
    return text


def qwen(name: str, arguments: dict[str, Any], line: str = "\n") -> str:
    inner = "".join(f"<parameter={key}>{line}{plain(value)}{line}</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{inner}</function>"


def glm(name: str, arguments: dict[str, Any], line: str = "\n") -> str:
    inner = "".join(
        f"<arg_key>{key}</arg_key>{line}<arg_value>{plain(value)}</arg_value>{line}" for key, value in arguments.items()
    )
    return f"<tool_call>{name}{line}{inner}</tool_call>"


def hunyuan(suffix: str = "", separator: str = "<tool_sep>", line: str = "\n") -> Callable[[Sequence[Asked]], str]:
    def call(name: str, arguments: dict[str, Any]) -> str:
        inner = glm(name, arguments, line).removeprefix(f"<tool_call>{name}")
        return f"<tool_call>{name}{separator}{inner}{line}"

    return lambda calls: retagged(
        f"<tool_calls>{line}{''.join(call(*one) for one in calls)}</tool_calls>",
        *((f"{tag}>", f"{tag}{suffix}>") for tag in ("tool_calls", "tool_call", "tool_sep", "arg_key", "arg_value")),
    )


KINDS = {str: "string", int: "integer", bool: "boolean", list: "array[string]"}


def ifm(name: str, arguments: dict[str, Any], typed: bool = False) -> str:
    inner = "".join(
        f"<ifm|arg_key>{key}</ifm|arg_key>\n"
        + (f"<ifm|arg_type>{KINDS[type(value)]}</ifm|arg_type>\n" if typed else "")
        + f"<ifm|arg_value>{plain(value)}</ifm|arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<ifm|tool_call>{name}\n{inner}</ifm|tool_call>"


def solar(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f"<|tool_arg:start|>{key}<|tool_arg:value|>{plain(value)}<|tool_arg:end|>\n" for key, value in arguments.items()
    )
    return f"<|tool_call:start|>{name}\n{inner}<|tool_call:end|>"


def minicpm(name: str, arguments: dict[str, Any]) -> str:
    def value(given: object) -> str:
        text = plain(given)
        return f"<![CDATA[{text}]]>" if set("<&\n") & set(text) and not isinstance(given, list) else escape(text)

    inner = "".join(f'<param name="{key}">{value(given)}</param>' for key, given in arguments.items())
    return f'<function name="{name}">{inner}</function>'


def plamo(name: str, arguments: dict[str, Any]) -> str:
    begin, end = "<|plamo:begin_tool_{}:plamo|>", "<|plamo:end_tool_{}:plamo|>"
    given = f"<|plamo:constrain|>json<|plamo:msg|>{json.dumps(arguments)}"
    inner = "".join(
        begin.format(word) + text + end.format(word) for word, text in (("name", name), ("arguments", given))
    )
    return begin.format("request") + inner + end.format("request")


def inkling(name: str, arguments: dict[str, Any]) -> str:
    return f"<|message_model|>{name}<|content_invoke_tool_json|>{body(name, arguments, 'args')}<|end_message|>"


def atem(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f'<atem:parameter name="{key}">{plain(value)}</atem:parameter>\n' for key, value in arguments.items()
    )
    tags = f'<atem:function_calls>\n<atem:invoke name="{name}.{name}">\n{inner}</atem:invoke>\n</atem:function_calls>'
    return f"<|start|>assistant to={name}<|message|>{tags}<|eom|>"


def beam(name: str, arguments: dict[str, Any]) -> str:
    inner = "".join(
        f'<rfl:parameter name="{key}">\n{plain(value)}\n</rfl:parameter>' for key, value in arguments.items()
    )
    return f"<|start|>assistant to={name}<|channel|>analysis <|constrain|>xml<|message|>{inner}<|call|>"


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
    "default": Format("default", listed("<TOOLCALL>", "</TOOLCALL>")),
    "default bare": Format("default", listed("", ""), bare=True),
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
    "qwen3_coder json": Format(
        "qwen3_coder", each(lambda name, given: f"<function={name}>{json.dumps(given)}</function>", between="")
    ),
    "qwen3_coder as hermes": Format("qwen3_coder", each(lambda *call: f"<tool_call>\n{body(*call)}\n</tool_call>")),
    "mimo": Format("mimo", each(lambda *call: f"<tool_call>\n{qwen(*call, '')}\n</tool_call>"), "mimo"),
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
    "hunyuan": Format("hunyuan", hunyuan(), "hunyuan"),
    "hunyuan suffix": Format(
        "hy_v3",
        hunyuan(":opensource"),
        "hy_v3",
        ("<think:opensource>", "</think:opensource>"),
        prompt="<think:opensource></think:opensource>",
    ),
    "hy_v4": Format("hy_v4", hunyuan(separator="", line=""), "hy_v4"),
    "iquest_q1": Format(
        "iquest_q1", each(lambda *call: retagged(glm(*call), ("tool_call>", "iquest_tool_call>"))), "basic"
    ),
    "k2_horizon": Format(
        "k2_horizon",
        each(ifm, "<ifm|tool_calls>\n", "\n</ifm|tool_calls>"),
        "k2_horizon",
        ("<ifm|think_fast>", "</ifm|think_fast>"),
        prompt="</ifm|think>",
    ),
    "k2_horizon types": Format("k2_horizon", each(lambda *call: ifm(*call, typed=True)), "basic"),
    "k2_horizon json": Format("k2_horizon", each(lambda *call: f"<ifm|tool_call>\n{body(*call)}</ifm|tool_call>")),
    "solar_open2": Format("solar_open2", each(solar), "solar_open2", ("<|think:start|>", "<|think:end|>")),
    "deepseek_v4_1": Format(
        "deepseek_v4_1",
        each(
            lambda *call: retagged(dsml(*call), ("｜DSML｜", "｜DSML｜ ")),
            "<｜DSML｜ calls>\n",
            "\n</｜DSML｜ calls>",
        ),
        "deepseek_v41",
    ),
    "gigachat35": Format(
        "gigachat35",
        each(
            lambda *call: retagged(dsml(*call), ("DSML", "GCML")), "<｜GCML｜tool_calls>\n", "\n</｜GCML｜tool_calls>"
        ),
        "basic",
    ),
    "dots": Format("dots", each(minimax, "<dots_function_call>\n", "\n</dots_function_call>"), "dots"),
    "dots json": Format("dots", each(lambda *call: f"<dots_function_call>\n{body(*call)}\n</dots_function_call>")),
    "minicpm5": Format("minicpm5", each(minicpm)),
    "granite_20b_fc": Format("granite_20b_fc", each(lambda *call: f"<function_call> {body(*call)}")),
    "plamo3": Format(
        "plamo3",
        each(plamo, "<|plamo:begin_tool_requests:plamo|>", "<|plamo:end_tool_requests:plamo|>", ""),
        "plamo3",
        ("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),
    ),
    "inkling": Format(
        "inkling",
        each(inkling, between=""),
        "inkling",
        ("<|message_model|><|content_thinking|>", "<|end_message|>"),
        say="<|message_model|><|content_text|>{}<|end_message|>",
    ),
    "muse_glimmer": Format(
        "muse_glimmer",
        each(atem, between=""),
        "muse_glimmer",
        ("<|start|>assistant to=self<|message|>", "<|eom|>"),
        say="<|start|>assistant to=user<|message|>{}<|eot|>",
    ),
    "beam": Format(
        "beam",
        each(beam, between=""),
        "beam",
        ("<|channel|>analysis<|message|>", "<|end|>"),
        say="<|start|>assistant<|channel|>final<|message|>{}<|end|>",
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
