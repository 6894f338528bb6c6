"""Another chat template for a model: what describes the model, with the template instead of its own.

The result is a folder or GGUF file without weights, as `--model-config` names one. So the worker, its card and every
frontend, here or on another machine, read the same template.
"""

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from dynamod.message.errors import UserError

from .bundle import FOLDER, GGUF
from .gguf_file import needed, read_metadata, to_bytes
from .packaged import user_cache

FORMAT = 1
"""Part of the name of what is kept. Raise it whenever something else is written."""
_KEY = "tokenizer.chat_template"
_TEMPLATES = ("chat_template.json", "chat_template.jinja")


def template_text(given: str) -> str:
    """A template: the text itself, or the content of the file that is named. Raises UserError."""
    if "{" in given:
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        hint = "give a file with a Jinja template, or the template itself; names of built-in templates are not known"
        raise UserError(f"`chat_template` {given!r} cannot be read: {reason}", hint) from None


def with_template(described: Path, template: str) -> Path:
    """What describes a model as `described` does, except the chat template. Reads and writes files: for a thread.

    Kept in the user's cache by its content, or in a temporary folder where the user has none. Raises UserError and
    OSError.
    """
    written = _folder(described, template) if described.is_dir() else _gguf(described, template)
    digest = hashlib.blake2b(digest_size=16)
    for name, data in sorted(written.items()):
        digest.update(b"%s\0%d\0%s" % (name.encode(), len(data), data))
    parent = (user_cache() or Path(tempfile.gettempdir()) / f"dynamod-{os.getuid()}") / "templates"
    parent.mkdir(parents=True, exist_ok=True)
    target = parent / f"{digest.hexdigest()}-{FORMAT}"
    if not target.is_dir():
        part = Path(tempfile.mkdtemp(prefix=".part-", dir=parent))
        try:
            for name, data in written.items():
                (part / name).write_bytes(data)
            try:
                part.rename(target)
            except OSError:
                if not target.is_dir():  # else another process was quicker
                    raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return target / GGUF if GGUF in written else target


def _gguf(path: Path, template: str) -> dict[str, bytes]:
    metadata = needed(read_metadata(path))
    kept = {key: value for key, value in metadata.items() if not key.startswith(_KEY)}
    return {GGUF: to_bytes({**kept, _KEY: template})}


def _folder(folder: Path, template: str) -> dict[str, bytes]:
    names = [name for name in FOLDER if name not in _TEMPLATES and (folder / name).is_file()]
    files = {name: (folder / name).read_bytes() for name in names}
    if (config := files.get("tokenizer_config.json")) is not None:
        plain = {key: value for key, value in json.loads(config).items() if key != "chat_template"}
        files["tokenizer_config.json"] = json.dumps(plain).encode()
    return {**files, "chat_template.jinja": template.encode()}
