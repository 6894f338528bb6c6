"""A made tokenizer.json like Gemma's, of any size."""

import json
import random
from pathlib import Path
from typing import Any

SCRIPTS = {
    "etaoinshrdlucmfwypvbgkjqxz": 12,
    "ETAOINSHRDLUCMFWYP": 2,
    "áéíóúñçãõäöüßetaoinshrdl": 3,
    "оеаинтсрвлкмдпуяыьгзбч": 3,
    "αοιετνσρκπυληω": 1,
    "ابتثجحخدرسشعلمنهوي": 1,
    "कखगचजटडतदनपबमयरलवशसह": 1,
    "".join(map(chr, range(0x4E00, 0x5000))): 1,
}
OTHERS = [chr(code) for start, end in ((0x21, 0x7F), (0x5000, 0x5C00), (0xAC00, 0xB400)) for code in range(start, end)]


def pieces(count: int, seed: int = 7) -> list[str]:
    """Tokens in the style of SentencePiece; all but single characters consist of two others, as in a trained one."""
    rnd = random.Random(seed)
    found = dict.fromkeys(["▁", *"".join(SCRIPTS), *OTHERS])
    pools = [[*letters] for letters in SCRIPTS]
    while len(found) < count:
        (pool,) = rnd.choices(pools, [*SCRIPTS.values()])
        left = pool[int(len(pool) * rnd.random() ** 3)]  # common ones come first
        right = pool[int(len(pool) * rnd.random() ** (9 if rnd.random() < 0.7 else 3))].lstrip("▁")
        token = left + right if left.startswith("▁") or rnd.random() < 0.75 else f"▁{left}{right}"
        for one in (token[:2], token[1:], token) if token.startswith("▁") else (token,):
            if one and len(one) <= 16 and one not in found and len(found) < count:
                found[one] = None
                pool.append(one)
    return [*found]


def tokenizer_file(count: int, special: int) -> dict[str, Any]:
    """What `tokenizers` writes for a Gemma model, with `special` added tokens. Merges: all cuts into two tokens."""
    added = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<unused{index}>" for index in range(special - 4))]
    head = [*added, *(f"<0x{byte:02X}>" for byte in range(256))]
    words = pieces(count - len(head))
    vocabulary = {token: index for index, token in enumerate([*head, *words])}
    cuts = [(word[:place], word[place:]) for word in words for place in range(1, len(word))]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    bos, text = {"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(added)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, text],
            "pair": [bos, text],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary],
        },
    }


def write_model(folder: Path, count: int = 262_144, special: int = 6_400) -> Path:
    """A model folder with the tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    data = tokenizer_file(count, special)
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False, indent=2))
    (folder / "config.json").write_text('{"max_position_embeddings": 8192, "eos_token_id": 1, "bos_token_id": 2}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>", "bos_token": "<bos>"}')
    return folder
