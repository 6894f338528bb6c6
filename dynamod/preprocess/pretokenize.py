"""How each `tokenizer.ggml.pre` name splits text before BPE merges: data, one line per pre-tokenizer.

The names are those of llama.cpp, the patterns those of the models' own tokenizer.json. To add a model, add its name to
the line it uses in `_NAMES`, or a new line with its patterns.
"""

from typing import Any, NamedTuple

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _words(digits: str, letters: str = r"\p{L}", contractions: str = f"{_CONTRACTIONS}|") -> str:
    """The pattern of cl100k and its descendants. They differ in how many digits go together, and in what a word has."""
    return rf"{contractions}[^\r\n\p{{L}}\p{{N}}]?[{letters}]+|{digits}| ?[^\s{letters}\p{{N}}]+[\r\n]*|{_SPACES}"


def _cased(digits: str, suffix: str, ends: str = r"\r\n/", but: str = "") -> str:
    """The pattern of o200k and its descendants, which also cut where a lower case run meets an upper case one.

    `ends`: what may follow punctuation; `but`: letters that are no part of words.
    """
    lead, rest = r"[^\r\n\p{L}\p{N}]?", rf"{digits}| ?[^\s\p{{L}}\p{{N}}]+[{ends}]*|{_SPACES}"
    upper, lower = f"[{_UPPER}{but}]", f"[{_LOWER}{but}]"
    return f"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{rest}"


class Split(NamedTuple):
    """Patterns to isolate in order; no patterns means GPT-2's own. `digits`: first cut off each digit alone.

    `whole`: a piece that is a token itself is not merged (tokenizer.json's `ignore_merges`). `bos`: the model wants a
    BOS token unless the file has it otherwise. `nfc`: text is normalised to NFC first. `spaces`: SentencePiece's ▁ and
    bytes instead of the byte alphabet, and no cuts.
    """

    patterns: tuple[str, ...] = ()
    digits: bool = False
    whole: bool = False
    bos: bool = False
    nfc: bool = False
    spaces: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = Split((_words(r"\p{N}{1,3}"),), whole=True, bos=True)
_QWEN2 = Split((_words(r"\p{N}"),))
_GPT4O = Split((_cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?"),))
_KIMI = r"[\p{Han}]+|" + _cased(r"\p{N}{1,3}", f"{_CONTRACTIONS}?", r"\r\n", r"&&[^\p{Han}]")
_DIGITS = Split(digits=True)
_ASIAN = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = Split(
    (
        r"\p{N}{1,3}",
        _ASIAN,
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    )
)
_SPARK = _DEEPSEEK3.patterns[2].replace(r"[\r\n]*|\s*[\r\n]+|", r"|[\r\n]|")
_THREES = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"  # from the right
_WITHOUT_SPACES = (
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{30FF}\x{FF65}-\x{FF9F}\x{2F00}-\x{2FDF}"
    r"\x{0E40}-\x{0EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}"
    r"\x{1100}-\x{11FF}]+"
)
_IMAGES = (r"<sentinel:[0-9]+>", r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z")
_DEEPSEEK_CODER = Split((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))
_CASED = r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\x{1D400}-\x{1D7FF}]]"  # letters that have a case, but the mathematical ones
_DEEPSEEK_LLM = Split(
    (
        *(r"[\r\n]", rf"\s?{_CASED}+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
        *(r"\s+$", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}+"),
    )
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_YOUTU = r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _ASIAN
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_EXAONE = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_RUNS = "".join(rf"\s{{{count}}}(?!\S)|" for count in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))

_NAMES: list[tuple[str, Split]] = [
    ("default gpt-2 gpt2 phi-2 mpt olmo jais granite-docling", Split()),
    ("exaone4 trillion gigachat a.x-4.0 mellum", Split()),
    ("jina-de jina-es jina-v1-en jina-v2-code jina-v2-de jina-v2-es modern-bert roberta-bpe", Split()),
    ("llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3),
    ("glm4 glm5", _LLAMA3._replace(bos=False)),
    ("dbrx smaug-bpe chatglm-bpe", _LLAMA3._replace(whole=False, bos=False)),
    ("qwen2", _QWEN2._replace(nfc=True)),
    ("deepseek-r1-qwen stablelm2 hunyuan megrez kormo f2llmv2 solar-open grok-2", _QWEN2),
    ("qwen35", Split((_words(r"\p{N}", r"\p{L}\p{M}"),))),
    ("seed-coder", Split((_words(r"\p{N}").replace(r"[\r\n]*|", "|"),))),
    ("exaone-moe", Split((_EXAONE,))),
    ("jais-2", Split((_words(r"\p{N}{1,3}").replace(r"\s+(?!\S)|\s+", rf"{_RUNS}\s"),))),
    ("ufakzeka", Split((_words(r"\p{N}", contractions=""),))),
    ("minicpm5", Split((r"\p{N}{1,3}", _words(r"\p{N}+")), whole=True)),
    ("laguna", Split((r"[^\n]+|[\n]+", _words(r"\p{N}")))),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", _DIGITS),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", _GPT4O),
    ("granite-embed-multi-97m", _GPT4O._replace(whole=True)),
    ("tiny_aya cohere2moe", Split((r"\d{1,3}(?=(?:\d{3})*\b)", *_GPT4O.patterns))),
    ("kimi-k2", Split((_KIMI,))),
    ("youtu", Split((_YOUTU, _cased(r"\p{N}", f"{_CONTRACTIONS}?")), whole=True)),
    ("tekken", Split((_cased(r"\p{N}", ""),), whole=True, bos=True)),
    ("deepseek-v3 hunyuan-dense joyai-llm hy_v4", _DEEPSEEK3),
    ("deepseek-coder", _DEEPSEEK_CODER),
    ("deepseek-llm", _DEEPSEEK_LLM),
    ("falcon", Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    ("bloom poro-chat gpt3-finnish", Split((_BLOOM,))),
    ("viking", Split((_BLOOM, r"\p{N}"))),
    ("bailingmoe bailingmoe2 llada-moe", Split((_BAILING,))),
    ("afmoe", Split((_THREES, _WITHOUT_SPACES, _DEEPSEEK3.patterns[2]))),
    ("spark2_5", Split((*_DEEPSEEK3.patterns[:2], _SPARK, r"\p{N}"))),
    ("superbpe", Split((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
    ("chameleon", Split((*_IMAGES, r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", _GPT2), bos=True)),
    ("sarvam-moe granite-embed-multi-311m", Split(spaces=True)),
]
PRE_TOKENIZERS: dict[str, Split] = {name: split for names, split in _NAMES for name in names.split()}


def pre_tokenizer(split: Split) -> Any:
    """Build the pre-tokenizer of `tokenizers`, ending in the byte alphabet."""
    from tokenizers import Regex, pre_tokenizers

    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if split.digits else []
    steps += [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split.patterns))
    return pre_tokenizers.Sequence(steps)
