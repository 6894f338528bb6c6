"""Reasoning in a model's text: the markers around it, by the names that Dynamo, vLLM and SGLang give their parsers."""

import re
from collections.abc import Iterable, Sequence

import msgspec

from dynamod.message.errors import UserError


class Thinking(msgspec.Struct, frozen=True):
    """`inside`: text begins with reasoning, unless the prompt says otherwise. `append`: reasoning stays in the content,

    after an opening marker. `channels`: reasoning is a channel of this grammar of calls. `around`: markers around the
    answer, which are no content. `suffixes`: checkpoints put a suffix into the tags.
    """

    openings: tuple[str, ...] = ("<think>",)
    closings: tuple[str, ...] = ("</think>",)
    inside: bool = False
    append: bool = False
    channels: str = ""
    around: tuple[str, ...] = ()
    suffixes: bool = False

    def suffixed(self, suffix: str) -> "Thinking":
        """The markers with this suffix in their tags, where checkpoints put one there."""
        if not self.suffixes:
            return self
        openings, closings = (
            tuple(word.replace(">", f"{suffix}>") for word in words) for words in (self.openings, self.closings)
        )
        return msgspec.structs.replace(self, openings=openings, closings=closings, suffixes=False)

    def begins_inside(self, prompt: str) -> bool:
        """Whether the text after this prompt begins with reasoning: the last marker near the prompt's end says it."""
        tail = prompt[-200:].rstrip()
        if tail.endswith(self.openings):
            return True
        return self.inside and not tail.endswith(self.closings)

    def before_form(self, prompt: str, special: Sequence[str]) -> tuple[str, str] | None:
        """The markers of reasoning in front of an answer that keeps to a form; None: it begins with the form.

        The opening one is empty where the prompt has begun it. None, too, where the prompt has switched it off, and for
        formats whose end a form cannot wait for: several markers, channels, `special` tokens, which no form allows.
        """
        if self.suffixes:
            return self.suffixed(suffix_of(prompt, special)).before_form(prompt, special)
        if self.channels or self.append or len(self.closings) != 1 or self.closings[0] in special:
            return None
        if self.begins_inside(prompt):
            return "", self.closings[0]
        if prompt[-200:].rstrip().endswith(self.closings) or self.openings[0] in special:
            return None
        return self.openings[0], self.closings[0]


TAGS = Thinking()
INSIDE = Thinking(inside=True)

THINKING = {
    "basic": TAGS,
    "qwen3": TAGS,
    "deepseek_r1": INSIDE,
    "deepseek_v3": TAGS,
    "granite": Thinking(
        ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
    ),
    "gpt_oss": Thinking((), (), channels="harmony"),
    "inkling": Thinking((), (), channels="inkling"),
    "muse_glimmer": Thinking((), (), channels="muse_glimmer"),
    "beam": Thinking((), (), channels="beam"),
    "mistral": Thinking(("[THINK]",), ("[/THINK]",)),
    "kimi": Thinking(("◁think▷",), ("◁/think▷",)),
    "kimi_k2": TAGS,
    "step3": INSIDE,
    "nemotron_deci": TAGS,
    "nemotron_nano": TAGS,
    "glm45": TAGS,
    "gemma4": Thinking(("<|channel>thought", "<|channel>"), ("<channel|>",)),
    "minimax_m2": INSIDE,
    "minimax_append_think": Thinking(append=True),
    "minimax_m3": Thinking(("<mm:think>",), ("</mm:think>",)),
    "cohere_command": Thinking(
        ("<|START_THINKING|>",),
        ("<|END_THINKING|>",),
        around=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "apertus": Thinking(("<|inner_prefix|>",), ("<|inner_suffix|>",)),
    "kimi_k3": Thinking(
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        around=("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    ),
    "seed_oss": Thinking(("<seed:think>",), ("</seed:think>",)),
    "ernie45": Thinking(around=("<response>", "</response>", "\n</response>")),
    "hunyuan_a13b": Thinking(around=("<answer>", "</answer>", "\n</answer>")),
    "hunyuan": Thinking(suffixes=True),
    "k2_horizon": Thinking(
        ("<ifm|think>", "<ifm|think_fast>", "<ifm|think_faster>"),
        ("</ifm|think>", "</ifm|think_fast>", "</ifm|think_faster>"),
        inside=True,
    ),
    "plamo3": Thinking(("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",)),
    "solar_open2": Thinking(("<|think:start|>",), ("<|think:end|>",)),
}
"""Own name -> markers."""

ALIASES = {
    "qwen3_coder": "basic",
    "qwen3_thinking": "deepseek_r1",
    "deepseek_v3_1": "deepseek_v3",
    "deepseek_v31": "deepseek_v3",
    "deepseek_v3_2": "deepseek_v3",
    "deepseek_v32": "deepseek_v3",
    "deepseek_v4": "deepseek_v3",
    "deepseek_v41": "deepseek_v3",
    "deepseekv4": "deepseek_v3",
    "gemma_4": "gemma4",
    "openai_gptoss": "gpt_oss",
    "harmony": "gpt_oss",
    "kimi_k25": "kimi_k2",
    "cohere_command3": "cohere_command",
    "cohere_command4": "cohere_command",
    "step3p5": "step3",
    "nemotron_v3": "nemotron_nano",
    "nemotron3": "nemotron_nano",
    "nemotron_3": "nemotron_nano",
    "glm47": "glm45",
    "glm": "glm45",
    "holo2": "basic",
    "interns1": "basic",
    "mimo": "basic",
    "minicpmv": "basic",
    "dots": "basic",
    "nanbeige": "basic",
    "poolside_v1": "basic",
    "gigachat35": "deepseek_r1",
    "iquest_q1": "deepseek_r1",
    "ling3": "glm45",
    "hy_v3": "hunyuan",
    "hy_v4": "hunyuan",
    "apertus2509": "apertus",
    "granite_thinking_parser": "nemotron_nano",
    "muse": "muse_glimmer",
    "olmo3": "deepseek_r1",
    "minimax": "minimax_m2",
    "minimax_m2_append_think": "minimax_append_think",
}
"""Name of another system -> own name."""


_SUFFIX = re.compile(r"</?think(:[^\s<>]+)>")


def suffix_of(prompt: str, special: Iterable[str]) -> str:
    """What a checkpoint has put into the tags of its format, `:opensource` of `<think:opensource>`; empty for nothing.

    The end of its prompts shows it, and so do its `special` tokens.
    """
    found = _SUFFIX.search(prompt[-200:]) or next(filter(None, map(_SUFFIX.fullmatch, special)), None)
    return found[1] if found is not None else ""


def thinking_of(name: str) -> Thinking:
    """The markers for a name or alias, `-` read as `_`. Raises UserError that lists the known ones."""
    plain = name.replace("-", "_").lower()
    plain = ALIASES.get(plain, plain)
    if plain not in THINKING:
        known = sorted({*THINKING, *ALIASES})
        raise UserError(f"unknown reasoning parser '{name}'", f"known parsers: {', '.join(known)}")
    return THINKING[plain]
