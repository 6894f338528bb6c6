"""The vocabulary as llama.cpp has loaded it: which tokens end an answer, and whether our tokenizer is the same one."""

import ctypes
import logging
import unicodedata
from collections.abc import Sequence
from typing import Any

from dynamod.message.errors import UserError

log = logging.getLogger("dynamod.engine")


class Vocabulary:
    """`size`: number of ids. `ends`: ids that llama.cpp takes for the end of an answer."""

    def __init__(self, api: Any, model: Any) -> None:
        self._api, self._vocab = api, api.llama_model_get_vocab(model)
        self.size = int(api.llama_vocab_n_tokens(self._vocab))
        is_end = api.llama_vocab_is_eog
        self.ends = tuple([index for index in range(self.size) if is_end(self._vocab, index)])

    def compare(self, reference: Any) -> bool:
        """Hold a `tokenizers.Tokenizer` against llama.cpp's own, line by line of a probe text.

        Returns whether all ids are equal. Raises UserError when its ids of plain ASCII mean another text here: it
        belongs to another model. Of other differences the first is logged. Beyond ASCII it is no warning: some of
        llama.cpp's patterns do without Unicode's categories, and it does not normalise.
        """
        from dynamod.preprocess.tokenizer import probe_text  # seldom needed: see `agreed.py`

        lines = unicodedata.normalize("NFC", probe_text(reference)).splitlines(keepends=True)
        for line in sorted(lines, key=str.isascii, reverse=True):
            ours, theirs = reference.encode(line, add_special_tokens=False).ids, self.ids(line)
            if ours == theirs:
                continue
            plain = line.isascii()
            if plain and (max(ours, default=0) >= self.size or self._words(ours) != self._words(theirs)):
                problem = (
                    f"the tokenizer is not that of the model: to llama.cpp the ids of {line!r:.60} are another text"
                )
                raise UserError(problem, "give --model-config the folder of the same model, or leave it out")
            place = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), 0)
            shown = [[reference.id_to_token(index) for index in ids[place : place + 3]] for ids in (ours, theirs)]
            level = logging.WARNING if plain else logging.INFO
            log.log(level, "llama.cpp would cut %.60r otherwise: %s is %s there", line, *shown)
            return False
        return True

    def ids(self, text: str) -> list[int]:
        """llama.cpp's ids of a text, special tokens in it included, without BOS."""
        data = text.encode()
        found = (ctypes.c_int32 * (len(data) + 16))()
        count = self._api.llama_tokenize(self._vocab, data, len(data), found, len(found), False, True)
        return list(found[: max(0, count)])

    def _words(self, ids: Sequence[int]) -> str:
        """llama.cpp's text of some ids, without white space: that some special tokens take away."""
        given, found = (ctypes.c_int32 * len(ids))(*ids), ctypes.create_string_buffer(1 << 16)
        count = self._api.llama_detokenize(self._vocab, given, len(ids), found, len(found), False, True)
        return "".join(found.raw[: max(0, count)].decode("utf-8", "replace").split())
