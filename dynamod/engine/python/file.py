"""`pystr:FILE` and `pytok:FILE`: a user's file with `async def generate(request)`, loaded into the worker's process."""

import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from dynamod.message.errors import UserError
from dynamod.message.worker import Chat, Generate

from ..base import RequestT
from .engine import PythonEngine, TextEngine, TokenEngine
from .handler import Handler

log = logging.getLogger("dynamod.engine")

EXAMPLE = "it needs `async def generate(request):` that yields dicts"


def check(arguments: Mapping[str, Any], _block_size: int | None) -> None:
    """Raise UserError for unknown arguments, a file that is not there, and one that Python cannot read."""
    wrong = sorted(arguments.keys() - {"file", "argv"})
    if wrong:
        raise UserError(f"pystr and pytok have no argument {wrong[0]}", "known: argv, a list of words for sys.argv")
    argv = arguments.get("argv", ())
    if not isinstance(argv, list | tuple) or not all(isinstance(word, str) for word in argv):
        raise UserError(f"argv is {argv!r}", 'give a list of words, like ["--size", "7"]')
    _source(Path(str(arguments.get("file", ""))))


def _source(file: Path) -> Any:
    try:
        return compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except OSError as error:
        hint = "give the path of a Python file, like pystr:my_engine.py"
        raise UserError(f"{file}: {error.strerror}", hint) from None
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserError(f"{file}{line}: {getattr(error, 'msg', error)}", "mend the file") from None


def load(file: Path, argv: list[str]) -> Handler:
    """Run the file once, as `python FILE argv...` would, and take its `generate`. Raises UserError."""
    code = _source(file)
    module = ModuleType("__main__")
    module.__file__ = str(file)
    sys.argv = [str(file), *argv]
    sys.path.insert(0, str(file.parent))
    sys.modules["__main__"] = module  # what the file pickles, or starts as processes, must find it
    try:
        exec(code, module.__dict__)
    except SystemExit as end:
        if end.code:
            raise UserError(f"{file} ended with {end.code}", "see the lines before") from None
    except Exception as error:
        log.exception("%s could not be loaded", file)
        raise UserError(f"{file}: {type(error).__name__}: {error}", "the log has the traceback") from None
    generate = getattr(module, "generate", None)
    if generate is None:
        raise UserError(f"{file} has no generate", EXAMPLE)
    return Handler(generate)


class _FileEngine(PythonEngine[RequestT]):
    """What both share. The file is loaded in a thread, for it may load a model too."""

    async def start(self) -> None:
        """Check and load the file. Raises UserError for what is wrong with it."""
        arguments = self.options.arguments
        check(arguments, None)
        file = Path(arguments["file"])
        began = time.monotonic()
        self.use(await asyncio.to_thread(load, file, [str(word) for word in arguments.get("argv", ())]))
        log.info("%s has loaded %s in %.1f s", self.name, file, time.monotonic() - began)


class PyStr(_FileEngine[Chat], TextEngine):
    """The file gets the client's chat request, and yields chat.completion.chunk dicts."""

    name = "pystr"

    async def start(self) -> None:
        """Load the file; its own name is the model's."""
        await super().start()
        self._card = self._card_without_files(Path(self.options.arguments["file"]).stem, kind="text", types=("chat",))


class PyTok(_FileEngine[Generate], TokenEngine):
    """The file gets token ids with limits and sampling options, and yields dicts with the new token_ids."""

    name = "pytok"

    async def start(self) -> None:
        """Read the model's card, then the file."""
        self._card = await self._model_card()
        await super().start()
