"""Hugging Face over the network: the list of a repository's files, and their download. Blocks; used by `download`."""

from collections.abc import Mapping
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from dynamod.message.errors import UserError

from . import resume
from .cache import cached, folder, path_of, root
from .locate import near
from .reference import Reference
from .selection import Selection, Sizes, select

ANSWER = 10.0
"""Seconds for the hub to answer with a list."""


CHUNK = 1 << 17
"""Bytes that are written at a time. The library's 10 MB are a minute without progress on a slow line."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at a commit: their bytes, and the names of their blobs in the cache."""

    commit: str
    sizes: Sizes
    blobs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Download:
    """Files of one model that are not all here."""

    wanted: Reference
    listing: Listing
    selection: Selection

    @property
    def place(self) -> Path:
        """The folder of the commit."""
        return folder(self.wanted.repository) / "snapshots" / self.listing.commit

    def total(self) -> int | None:
        """Bytes of all files; None when the hub does not say."""
        sizes = [self.listing.sizes[file] for file in self.selection.files]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def done(self) -> int:
        """Bytes that are on the disk, also of another process that loads the same files."""
        return sum(map(self._done, self.selection.files))

    def _done(self, file: str) -> int:
        try:
            return (self.place / file).stat().st_size
        except OSError:
            pass
        blobs, name = folder(self.wanted.repository) / "blobs", self.listing.blobs.get(file)
        found = [(at.st_mtime, at.st_size) for path in blobs.glob(f"{name}*") if (at := _stat(path))] if name else []
        return max(found)[1] if found else 0

    def run(self) -> Path:
        """Load what is missing. Raises UserError."""
        import huggingface_hub
        from huggingface_hub import constants

        constants.DOWNLOAD_CHUNK_SIZE = CHUNK
        names, sizes = [escape(file) for file in self.selection.files], self.listing.sizes
        large = [file for file in self.selection.files if (sizes[file] or 0) >= resume.SMALLEST]
        cache = folder(self.wanted.repository)
        try:
            resume.forget(cache, self.listing.blobs.values())
            resume.load(self.wanted.repository, self.listing.commit, large, cache)
            place = huggingface_hub.snapshot_download(self.wanted.repository, allow_patterns=names)
        except UserError:
            raise
        except Exception as error:  # the HTTP client's own errors have no common base that is public
            raise _explained(self.wanted, error) from None
        return path_of(Path(place), self.selection)


def find(wanted: Reference, *, weights: bool = True) -> Path | Download:
    """A model's path when it is here as the hub has it, or here and the hub cannot be asked; else what is to be loaded.

    Raises UserError.
    """
    try:
        listing = _list(wanted.repository)
    except Exception as error:
        if (path := cached(wanted, weights=weights)) is not None:
            return path
        raise _explained(wanted, error) from None
    found = Download(wanted, listing, select(listing.sizes, wanted, weights=weights))
    if all((found.place / file).is_file() for file in found.selection.files):
        return path_of(found.place, found.selection)
    return found


def _list(repository: str) -> Listing:
    from huggingface_hub import HfApi

    info = HfApi().model_info(repository, files_metadata=True, timeout=ANSWER)
    files: list[Any] = info.siblings or []
    blobs = {file.rfilename: file.lfs["sha256"] if file.lfs else file.blob_id for file in files}
    return Listing(info.sha or "", {file.rfilename: file.size for file in files}, blobs)


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:  # it has just been renamed
        return None


def _explained(wanted: Reference, error: Exception) -> UserError:
    """One line of what went wrong, what to do, and where a model was searched that was not found."""
    from huggingface_hub import constants, errors

    def failed(reason: str, hint: str) -> UserError:
        return UserError(f"model '{wanted}' {reason}", hint)

    repository = wanted.repository
    here = f"searched: the folder {Path.cwd()}, the cache {root()}"
    everywhere = f"{here}, the hub {constants.ENDPOINT}"
    match error:
        case errors.GatedRepoError():
            return failed("is gated", f"accept its terms at https://huggingface.co/{repository} and set HF_TOKEN")
        case errors.RepositoryNotFoundError():
            hint = f"check the name, or set HF_TOKEN; {near(repository)}; {everywhere}"
            return failed("was not found on Hugging Face", hint)
        case errors.OfflineModeIsEnabled() | errors.LocalEntryNotFoundError():
            hint = f"unset it, or give a local path; {here}"
            return failed("is not in the local cache, and HF_HUB_OFFLINE is set", hint)
        case errors.HfHubHTTPError():
            reason = f"could not be downloaded: {_first_line(error)}"
            return failed(reason, "try again or give a local path")
    reason = f"is not in the local cache, and Hugging Face cannot be reached ({_first_line(error)})"
    return failed(reason, f"check the network, or give a local path; {everywhere}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0] or type(error).__name__
