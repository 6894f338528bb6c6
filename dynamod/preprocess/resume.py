"""Large files of the hub, in parts: a download that was interrupted continues where it stopped. Blocks.

The library loads each file anew into a file of its own, and removes that when it ends. So large files are loaded here,
with the library's lock and into its cache, where it finds them. What the hub keeps in Xet it also gives as a stream of
bytes, which can continue. Chunks of Xet arrive in any order; they are loaded if `HF_XET_HIGH_PERFORMANCE` asks for
them.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

from dynamod.message.errors import UserError

SMALLEST = 500_000
"""Bytes of a file that is worth it."""
AT_ONCE = 8
"""Files that are loaded at the same time, as the library does."""
PART = ".part"
SHA256 = 64
"""Characters of the name of a large file, which is its digest; others are named by a digest of git."""


def load(repository: str, commit: str, files: Iterable[str], place: Path) -> None:
    """Load `files` into the repository's folder `place` of the cache. Raises the library's errors, UserError."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(_load, repository, commit, file, place) for file in files]:
            done.result()


def forget(place: Path, blobs: Iterable[str]) -> None:
    """Remove parts of files that the repository has no more. `blobs`: names of the parts that it has."""
    known = {*blobs}
    for part in (place / "blobs").glob(f"*{PART}"):
        if part.stem not in known:
            part.unlink(missing_ok=True)


def _load(repository: str, commit: str, file: str, place: Path) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, get_token, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import WeakFileLock, build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repository, file, revision=commit)
    found = get_hf_file_metadata(url, token=get_token())
    by_chunks = found.xet_file_data is not None and constants.HF_XET_HIGH_PERFORMANCE
    if not found.etag or found.size is None or by_chunks:
        return
    headers = build_hf_headers(token=get_token())
    if urlsplit(found.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)
    blob, part = place / "blobs" / found.etag, place / "blobs" / f"{found.etag}{PART}"
    lock = place.parent / ".locks" / place.name / f"{found.etag}.lock"
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(lock):
        if blob.exists():
            return
        with part.open("ab") as data:
            here = data.tell()
            if here > found.size:
                here = data.truncate(0)
            http_get(found.location, data, resume_size=here, headers=headers, expected_size=found.size)
        if here and len(found.etag) == SHA256 and _sha256(part) != found.etag:
            part.unlink()  # what was here was not the file's beginning, as after a crash of the machine
            raise UserError(f"file {file} of {repository} came damaged", "try again: it is loaded from its beginning")
        part.replace(blob)


def _sha256(path: Path) -> str:
    with path.open("rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()
