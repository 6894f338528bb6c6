"""Checks of tokenizers that were passed before: to build a tokenizer takes as long as to load a small model."""

import contextlib
import hashlib
import importlib.metadata
from pathlib import Path

from dynamod import __version__
from dynamod.message.discovery import ModelCard
from dynamod.preprocess.packaged import user_cache

from .library import version

RELEASES = ("1", __version__, importlib.metadata.version("tokenizers"))
"""Of these files, and of what builds a tokenizer: another one may build another tokenizer of the same file."""


class Agreement:
    """Whether the tokenizer of a card cuts all of the probe text as llama.cpp does with the model's file.

    Known from an empty file in the user's cache, whose name stands for the card's checksum, the model's file as it is
    now, and the releases of what builds both tokenizers. A difference is not remembered: it is told at each start.
    """

    def __init__(self, path: Path, card: ModelCard) -> None:
        """Blocks. Raises OSError when the model's file cannot be read."""
        found, cache = path.stat(), user_cache()
        file = (str(path.absolute()), found.st_ino, found.st_size, found.st_mtime_ns)
        facts = (RELEASES, version(), card.mdc_sum, file)
        name = hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()
        self._file = cache / "agreed" / name if cache is not None and card.mdc_sum else None

    @property
    def known(self) -> bool:
        """Whether the check was passed before."""
        return self._file is not None and self._file.is_file()

    def remember(self) -> None:
        """The check is passed. A folder that cannot be written costs a check at the next start."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                self._file.touch()
