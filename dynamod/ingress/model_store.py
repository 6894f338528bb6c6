"""Where fetched files of models stay: a folder per checksum, whole or not there, shared by all processes of a user."""

import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.preprocess.bundle import BundleError
from dynamod.preprocess.model_files import check, write
from dynamod.preprocess.packaged import user_cache

log = logging.getLogger("dynamod.frontend")

_PART = ".part-"
_LEFT_OVER = 3600.0
"""Seconds after which a folder in the making was left by a process that died."""


def default_folder() -> Path | None:
    """`$XDG_CACHE_HOME/dynamod/models`, by default in `~/.cache`; None for a user without a home."""
    cache = user_cache()
    return cache / "models" if cache is not None else None


class ModelCache:
    """Methods read and write files: call them in a thread. Only for cards that are `model_files.verifiable`."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_folder()
        self._temporary = False
        self._storing = threading.Lock()

    def find(self, card: ModelCard) -> ModelCard | None:
        """The card with the path of its files in the cache; None when they are not there, or damaged."""
        entry = self._folder / card.mdc_sum if self._folder is not None else None
        try:
            if entry is not None and entry.is_dir():
                return _at(check(entry, card), card)
        except (BundleError, OSError) as error:
            log.warning("the files of model %s in %s are of no use: %s", card.name, entry, error)
        return None

    def store(self, files: Mapping[str, bytes], card: ModelCard) -> ModelCard:
        """Keep the files of a model and return the card with their path; damaged ones are replaced.

        Where the cache cannot be written, a temporary folder is used until the process ends. Raises BundleError for
        files that are not the card's, and OSError when the temporary folder cannot be written either.
        """
        with self._storing:
            try:
                if self._folder is not None:
                    return _at(_store(files, self._folder, card), card)
                why = "the user has no home folder"
            except OSError as error:
                if self._temporary:
                    raise
                why = str(error)
            self._folder, self._temporary = Path(tempfile.mkdtemp(prefix="dynamod-models-")), True
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)  # at exit at the latest
            log.warning(
                "files of models are fetched again after a restart, because they cannot be kept (%s); "
                "set XDG_CACHE_HOME to a folder that can be written",
                why,
            )
            return _at(_store(files, self._folder, card), card)


def _at(path: Path, card: ModelCard) -> ModelCard:
    return msgspec.structs.replace(card, path=str(path), config_path="")


def _store(files: Mapping[str, bytes], folder: Path, card: ModelCard) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    _sweep(folder)
    part, entry = Path(tempfile.mkdtemp(prefix=_PART, dir=folder)), folder / card.mdc_sum
    try:
        write(files, part)
        check(part, card)
        try:
            part.rename(entry)
        except OSError:
            if not entry.is_dir():
                raise
            try:
                return check(entry, card)  # another process was quicker
            except (BundleError, OSError):
                _mend(entry, part)
        return check(entry, card)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _mend(entry: Path, part: Path) -> None:
    """Replace one file after the other, so that a concurrent reader never finds a file missing."""
    good = [place.relative_to(part) for place in part.rglob("*") if place.is_file()]
    for name in good:
        (entry / name).parent.mkdir(exist_ok=True)
        os.replace(part / name, entry / name)
    for place in entry.rglob("*"):
        if not place.is_dir() and place.relative_to(entry) not in good:
            place.unlink(missing_ok=True)


def _sweep(folder: Path) -> None:
    for part in folder.glob(f"{_PART}*"):
        try:
            if part.stat().st_mtime < time.time() - _LEFT_OVER:
                shutil.rmtree(part, ignore_errors=True)
        except FileNotFoundError:
            pass  # another process has done it
