"""How each `tokenizer.ggml.pre` name splits text before BPE merges: data, one line per pre-tokenizer.

The names are those of llama.cpp, the patterns those of the models' own tokenizer.json. To add a model, add its name to
the line it uses in `PRE_TOKENIZERS`, or a new line with its patterns.
"""

from typing import Any, NamedTuple

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    """The pattern of cl100k and its descendants; they differ in how many digits go together."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased(digits: str, suffix: str) -> str:
    """The pattern of o200k and its descendants, which also cut where a lower case run meets an upper case one."""
    lead, rest = r"[^\r\n\p{L}\p{N}]?", rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    return f"{lead}{_UPPER}*{_LOWER}+{suffix}|{lead}{_UPPER}+{_LOWER}*{suffix}|{rest}"


class Split(NamedTuple):
    """Patterns to isolate in order; no patterns means GPT-2's own. `digits`: first cut off each digit alone.

    `whole`: a piece that is a token itself is not merged (tokenizer.json's `ignore_merges`). `bos`: the model wants a
    BOS token unless the file has it otherwise. `nfc`: text is normalised to NFC first.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    whole: bool = False
    bos: bool = False
    nfc: bool = False


_LLAMA3 = Split((_words(r"\p{N}{1,3}"),), whole=True, bos=True)
_QWEN2 = Split((_words(r"\p{N}"),))
_DIGITS = Split(digits=True)
_DEEPSEEK3 = Split(
    (
        r"\p{N}{1,3}",
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_DEEPSEEK_CODER = Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))

PRE_TOKENIZERS: dict[str, Split] = {
    **dict.fromkeys(("default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "granite-docling"), Split()),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0"), _LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _LLAMA3._replace(whole=False, bos=False)),
    "qwen2": _QWEN2._replace(nfc=True),
    **dict.fromkeys(("deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"), _QWEN2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("gpt-4o", "llama4"), Split((_cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),))),
    "tekken": Split((_cased(r"\p{N}", ""),), whole=True, bos=True),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), _DEEPSEEK3),
    "deepseek-coder": _DEEPSEEK_CODER,
}


def pre_tokenizer(split: Split) -> Any:
    """Build the pre-tokenizer of `tokenizers`, ending in the byte alphabet."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.patterns))
    return pre_tokenizers.Sequence(steps)
