"""A Hugging Face model folder as a `Source`: (generation_)config.json, tokenizer.json, tokenizer_config.json."""

from pathlib import Path
from typing import Any, cast

import msgspec

from dynamod.message.errors import UserError

from .source import Source

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
_SAMPLING_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_TOKEN_KEYS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_UNSET_LENGTH = 10**9  # transformers writes 1e30 into model_max_length when it is not set

Json = dict[str, Any]


class _Added(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    """The one part of tokenizer.json that is read here; decoding skips the vocabulary quickly."""

    added_tokens: list[_Added] = []


def folder_source(folder: Path) -> Source:
    """Read the folder. Raises UserError naming a missing or broken file and what it is for."""
    config = _read(folder, "config.json", "the model's context length and token ids")
    generation = _read(folder, "generation_config.json")
    tokenizing = _read(folder, "tokenizer_config.json")
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise _missing(folder, "tokenizer.json", "how text becomes tokens")
    text_config = config.get("text_config")
    configs = [config, cast(Json, text_config)] if isinstance(text_config, dict) else [config]
    tokens = _special_tokens(folder, tokenizing)
    ids = _ids(tokenizer_file, tokenizing)
    eos = [value for part in (generation, *configs) for value in _id_list(part.get("eos_token_id"))]
    if tokens.get("eos_token") in ids:
        eos.append(ids[tokens["eos_token"]])
    bos = [value for part in (*configs, generation) for value in _id_list(part.get("bos_token_id"))]
    bos_id = ids.get(tokens.get("bos_token", ""), bos[0] if bos else None)
    return Source(
        path=folder,
        context_length=_context_length(configs, tokenizing),
        eos_ids=tuple(dict.fromkeys(eos)),
        bos_id=bos_id,
        build=lambda: _build(tokenizer_file),
        content=lambda: [tokenizer_file.read_bytes()],
        tokenizer_file=tokenizer_file,
        templates=_templates(folder, tokenizing),
        tokens=tokens,
        sampling=_sampling(generation),
    )


def _missing(folder: Path, name: str, purpose: str) -> UserError:
    have = ", ".join(sorted(item.name for item in folder.iterdir())[:8]) or "nothing"
    hint = "give the folder of the original model with --model-config" if name == "tokenizer.json" else ""
    return UserError(f"{name} ({purpose}) is missing from the model folder {folder}; it has: {have}", hint)


def _read(folder: Path, name: str, purpose: str = "") -> Json:
    """A JSON object; an absent file is empty when no purpose makes it needed."""
    path = folder / name
    if not path.is_file():
        if purpose:
            raise _missing(folder, name, purpose)
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=Json)
    except msgspec.MsgspecError as error:
        raise UserError(f"{path} is not a JSON object: {error}") from None


def _build(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise UserError(f"{path} cannot be loaded: {error}") from None


def _id_list(value: Any) -> list[int]:
    """An id, a list of ids, or nothing, as a list."""
    values = value if isinstance(value, list) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _context_length(configs: list[Json], tokenizing: Json) -> int:
    given = [part[key] for part in configs for key in _CONTEXT_KEYS if isinstance(part.get(key), int)]
    if given:
        return int(given[0])
    length = tokenizing.get("model_max_length")
    return int(length) if isinstance(length, int | float) and 0 < length < _UNSET_LENGTH else 0


def _special_tokens(folder: Path, tokenizing: Json) -> dict[str, str]:
    """By role; a token is given as its text or as an AddedToken object."""
    source = {**_read(folder, "special_tokens_map.json"), **tokenizing}
    given = {key: source.get(key) for key in _TOKEN_KEYS}
    texts = {key: value.get("content") if isinstance(value, dict) else value for key, value in given.items()}
    return {key: text for key, text in texts.items() if isinstance(text, str)}


def _ids(tokenizer_file: Path, tokenizing: Json) -> dict[str, int]:
    """Ids of added tokens by text."""
    try:
        added = msgspec.json.decode(tokenizer_file.read_bytes(), type=_TokenizerFile).added_tokens
    except msgspec.MsgspecError as error:
        raise UserError(f"{tokenizer_file} is not a tokenizer file: {error}") from None
    found = {token.content: token.id for token in added}
    more = tokenizing.get("added_tokens_decoder")
    for key, value in cast(Json, more).items() if isinstance(more, dict) else ():
        if isinstance(value, dict) and key.isdecimal() and isinstance(value.get("content"), str):
            found.setdefault(cast(str, value["content"]), int(key))
    return found


def _templates(folder: Path, tokenizing: Json) -> dict[str, str]:
    """Chat templates by name. A chat_template.jinja file wins over tokenizer_config.json, as in transformers."""
    given = tokenizing.get("chat_template")
    items = given if isinstance(given, list) else [{"template": given}]
    found = {str(item.get("name", "default")): item.get("template") for item in items if isinstance(item, dict)}
    single = folder / "chat_template.jinja"
    if single.is_file():
        found["default"] = single.read_text("utf-8")
    elif not isinstance(found.get("default"), str):
        found["default"] = _read(folder, "chat_template.json").get("chat_template")  # multimodal processors
    for extra in sorted(folder.glob("additional_chat_templates/*.jinja")):
        found[extra.stem] = extra.read_text("utf-8")
    return {name: text for name, text in found.items() if isinstance(text, str)}


def _sampling(generation: Json) -> dict[str, float]:
    """The model maker's sampling defaults; `do_sample: false` means greedy."""
    if generation.get("do_sample") is False:
        return {"temperature": 0.0}
    return {
        key: float(generation[key])
        for key in _SAMPLING_KEYS
        if isinstance(generation.get(key), int | float) and not isinstance(generation[key], bool)
    }
