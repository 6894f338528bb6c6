"""A model of llama.cpp that says what `scripted.py` says, by its weights.

llama.cpp computes each token of the prompts of agents, which have up to 43,000 tokens. The template ends a prompt with
a token that names the answer, and the weights give each token of an answer the one that follows it.
"""

from itertools import pairwise
from pathlib import Path

import numpy as np
from gguf import GGUFReader, TokenType
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

from dynamod import sample
from tests.state_models import write, writer_like

from .scripted import ANSWER, EDIT, SHELLS, call

CONTEXT = 131_072
WIDTH, HEAD, INNER = 64, 32, 32
"""Values of a token's vector, of the one head of attention, of the layer's inner vector."""
GAIN = 8.0
"""Of the last norm: a logit of 64 for the token that follows, 0 for all others."""
CHOICE = f"""
{{%- set chosen = namespace(answer='answer') %}}
{{%- for tool in tools or [] if tool.function.name in {list(SHELLS)} %}}
{{%- set chosen.answer = tool.function.name %}}
{{%- endfor %}}
{{%- if messages | selectattr('role', 'equalto', 'tool') | list %}}
{{%- set chosen.answer = 'answer' %}}
{{%- elif not tools and 'SEARCH/REPLACE' in (messages | tojson) %}}
{{%- set chosen.answer = 'edit' %}}
{{%- endif %}}
{{%- if add_generation_prompt %}}
{{{{- '<|' + chosen.answer + '|>' }}}}
{{%- endif %}}
"""


def answers() -> dict[str, list[str]]:
    """The tokens of each answer, by the name that the template chooses. No token has two that may follow it."""
    found = {"answer": halves(ANSWER), "edit": halves(EDIT)}
    for shell in SHELLS:
        before, _, after = call(shell).partition(shell)
        found[shell] = [before + shell, *halves(after)]
    return found


def halves(text: str) -> list[str]:
    """A text as two tokens."""
    middle = len(text) // 2
    return [text[:middle], text[middle:]]


def scripted_weights(path: Path) -> Path:
    """Write the model."""
    reader = GGUFReader(sample.path("sample.gguf"))
    known, types, template = (
        reader.fields[f"tokenizer.{name}"].contents() for name in ("ggml.tokens", "ggml.token_type", "chat_template")
    )
    chains = [[f"<|{name}|>", *texts] for name, texts in answers().items()]
    starts = [chain[0] for chain in chains]
    texts = list(dict.fromkeys(text for chain in chains for text in chain[1:]))
    tokens = [*known, *starts, *texts]
    follows = {
        tokens.index(before): tokens.index(after)
        for chain in chains
        for before, after in pairwise([*chain, "<|im_end|>"])
    }
    writer = writer_like(
        path,
        "llama",
        reader,
        context_length=CONTEXT,
        embedding_length=WIDTH,
        block_count=1,
        feed_forward_length=INNER,
        vocab_size=len(tokens),
        **dict.fromkeys(("attention.head_count", "attention.head_count_kv"), 1),
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.dimension_count"), HEAD),
        **{
            "ggml.tokens": [*known, *starts, *map(spelled, texts)],
            "ggml.token_type": [*types, *[TokenType.CONTROL] * len(starts), *[TokenType.NORMAL] * len(texts)],
            "chat_template": template + CHOICE,
        },
    )
    for name, values in tensors(len(tokens), len(known), follows).items():
        writer.add_tensor(f"{name}.weight", values)
    return write(writer, path)


def tensors(tokens: int, known: int, follows: dict[int, int]) -> dict[str, NDArray[np.float32]]:
    """All tensors. Token `known` and those after it have a direction of their own, the others share one."""
    embedding, output = np.zeros((tokens, WIDTH), np.float32), np.zeros((tokens, WIDTH), np.float32)
    embedding[:known, 0] = 1
    for before, after in follows.items():
        embedding[before, before - known + 1] = output[after, before - known + 1] = 1
    shapes = {"attn_q": (HEAD, WIDTH), "attn_k": (HEAD, WIDTH), "attn_v": (HEAD, WIDTH), "attn_output": (WIDTH, HEAD)}
    shapes |= {"ffn_gate": (INNER, WIDTH), "ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    layer = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    layer |= {name: np.ones(WIDTH, np.float32) for name in ("attn_norm", "ffn_norm")}
    ends = {"token_embd": embedding, "output": output, "output_norm": np.full(WIDTH, GAIN, np.float32)}
    return ends | {f"blk.0.{name}": values for name, values in layer.items()}


def spelled(text: str) -> str:
    """As the vocabulary spells it: each byte is a visible character."""
    return ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]
