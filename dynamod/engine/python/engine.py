"""A user's handler as an engine of the worker actor, like those that ship; `pystr:FILE` and `pytok:FILE` load it."""

import ast
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
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, RequestT, Spawn
from .handler import Calls, Handler
from .requests import openai, preprocessed, room
from .writers import ChunkWriter, TokenWriter

log = logging.getLogger("dynamod.engine")

SLOW = 10.0
"""Seconds of an import after which it is said that it has not come back."""
EXAMPLE = "it needs `async def generate(request):` that yields dicts"


class PythonEngine(Engine[RequestT]):
    """What both kinds share. Requests run beside each other; how many at once is the handler's business."""

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.calls: Calls | None = None
        self._tokens = 0

    def use(self, handler: Handler) -> None:
        """Answer with this from now on."""
        self.handler = handler
        self.calls = Calls(handler, self.spawn, private=True)

    def statistics(self) -> EngineStatistics:
        """Steps are the handler's own: none is known."""
        return EngineStatistics(running=len(self.calls or ()), tokens=self._tokens)

    async def close(self) -> None:
        """Tell the handlers; what is open is failed by the worker, and may go elsewhere."""
        if self.calls is not None:
            self.calls.stop()

    def _begin(self, request: Generate | Chat, given: Any, reply: Reply, writer: TokenWriter | ChunkWriter) -> None:
        """Call the handler with what is `given` to it; the first token is reported and all of them are counted."""
        assert self.calls is not None

        def take(item: object) -> float | None:
            before = writer.count
            left = writer.take(item)
            if writer.count and not before:
                self.prefill_completed(reply)
            self._tokens += writer.count - before
            return left

        self.calls.begin(request.request_id, given, reply, take, writer.end)


class TokenEngine(PythonEngine[Generate]):
    """PreprocessedRequest in, dicts with token_ids out."""

    serves = (Generate,)

    def submit(self, request: Generate, reply: Reply) -> None:
        """Call the handler with the request in the original's form."""
        writer = TokenWriter(reply, self.handler.name, room(request))
        if room(request) == 0:
            writer.end()
        else:
            self._begin(request, preprocessed(request), reply, writer)


class TextEngine(PythonEngine[Chat]):
    """The client's request in, OpenAI chunks out."""

    serves = (Chat,)

    def submit(self, request: Chat, reply: Reply) -> None:
        """Call the handler with the client's JSON."""
        self._begin(request, openai(request), reply, ChunkWriter(reply, self.handler.name))


def check(arguments: Mapping[str, Any], _block_size: int | None) -> None:
    """Raise UserError for unknown arguments, a file that is not there, and one that Python cannot read."""
    wrong = sorted(arguments.keys() - {"file", "argv"})
    if wrong:
        raise UserError(f"pystr and pytok have no argument {wrong[0]}", "known: argv, a list of words for sys.argv")
    argv = arguments.get("argv", ())
    if not isinstance(argv, list | tuple) or not all(isinstance(word, str) for word in argv):
        raise UserError(f"argv is {argv!r}", 'give a list of words, like ["--size", "7"]')
    file = Path(str(arguments.get("file", "")))
    _source(file)
    if not _defines_generate(ast.parse(file.read_bytes())):
        raise UserError(f"{file} has no generate", f"{EXAMPLE}; a file that serves by itself: python {file.name}")


def _defines_generate(module: ast.Module) -> bool:
    """Whether running the file may make a `generate`; when in doubt it may."""
    if any(isinstance(node, ast.Global) and "generate" in node.names for node in ast.walk(module)):
        return True
    todo: list[ast.AST] = [*module.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name == "generate":
                return True
            continue  # names inside are not the file's
        if isinstance(node, ast.alias) and (node.asname or node.name.partition(".")[0]) in ("generate", "*"):
            return True
        if isinstance(node, ast.Name) and node.id in ("generate", "globals", "exec", "vars", "setattr"):
            return True
        todo += ast.iter_child_nodes(node)
    return False


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
        text = "%s has not come back from its import for %g s: it loads something large, or serves by itself"
        slow = asyncio.get_running_loop().call_later(SLOW, log.warning, text, file, SLOW)
        try:
            self.use(await asyncio.to_thread(load, file, [str(word) for word in arguments.get("argv", ())]))
        finally:
            slow.cancel()
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
