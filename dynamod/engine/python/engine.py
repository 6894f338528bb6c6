"""A user's handler as an engine of the worker actor. `pystr:FILE` and `pytok:FILE` load the file with the handler."""

import ast
import asyncio
import logging
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, UserError
from dynamod.message.worker import MATCHED, Chat, Embed, Generate
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineRequest, EngineStatistics, RequestT, Spawn
from ..forms import OwnForms
from .handler import Calls, Handler
from .requests import embedding, openai, preprocessed, room
from .writers import ChunkWriter, TokenWriter, VectorWriter

log = logging.getLogger("dynamod.engine")

SLOW = 10.0
"""Seconds of an import after which it is said that it has not come back."""
EXAMPLE = "it needs `async def generate(request):` that yields dicts, or `async def embed(request):`"
FUNCTIONS = ("generate", "embed")


class PythonEngine(Engine[RequestT]):
    """What both kinds share. Requests run alongside each other; how many at once is the handler's business."""

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self.calls: Calls | None = None
        self.embeddings: Calls | None = None
        self._tokens = 0

    def use(self, handler: Handler) -> None:
        """Answer with this from now on."""
        self.handler = handler
        self.calls = Calls(handler, self.spawn, private=True)

    def embed_with(self, handler: Handler) -> None:
        """Make vectors with this from now on."""
        self.embedder = handler
        self.embeddings = Calls(handler, self.spawn, private=True)

    def statistics(self) -> EngineStatistics:
        """Steps are the handler's own: none is known."""
        return EngineStatistics(running=len(self.calls or ()) + len(self.embeddings or ()), tokens=self._tokens)

    async def close(self) -> None:
        """Tell the handlers; what is open is failed by the worker, and may go elsewhere."""
        for calls in (self.calls, self.embeddings):
            if calls is not None:
                calls.stop()

    def _embed(self, request: Embed | Chat, reply: Reply) -> None:
        """Call the handler that makes vectors. Raises BadRequest when there is none."""
        if self.embeddings is None:
            raise BadRequest("the file has no embed")
        ids = isinstance(request, Embed)
        writer = VectorWriter(reply, self.embedder.name, told=not ids)
        given = embedding(request) if isinstance(request, Embed) else openai(request)
        self.embeddings.begin(request.request_id, given, reply, writer.take, writer.end)

    def _begin(
        self, request: Generate | Chat, given: Any, reply: Reply, writer: TokenWriter | ChunkWriter, mask: Any = None
    ) -> None:
        """Call the handler with what is `given` to it; the first token is reported and all of them are counted.

        `mask`: for the form of the answer. Raises BadRequest when there is no handler.
        """
        if self.calls is None:
            raise BadRequest("the file has no generate")

        def take(item: object) -> float | None:
            before = writer.count
            left = writer.take(item)
            if writer.count and not before:
                self.prefill_completed(reply)
            self._tokens += writer.count - before
            return left

        self.calls.begin(request.request_id, given, reply, take, writer.end, mask)


def card_of(card: ModelCard, handler: Handler) -> ModelCard:
    """The card of a token engine with this handler: whether it keeps to forms of answers."""
    if card.kind != "tokens" or not handler.masks:
        return card
    can = msgspec.structs.replace(card.capabilities, grammars=True, forms=MATCHED)
    return msgspec.structs.replace(card, capabilities=can)


class TokenEngine(OwnForms, PythonEngine[Generate]):
    """PreprocessedRequest in, dicts with token_ids out."""

    serves: tuple[type[EngineRequest], ...] = (Generate,)

    def submit(self, request: Generate | Embed, reply: Reply) -> None:
        """Call the handler with the request in NVIDIA Dynamo's form."""
        if isinstance(request, Embed):
            self._embed(request, reply)
            return
        if self.calls is None:
            raise BadRequest("the file has no generate")
        writer = TokenWriter(reply, self.handler.name, room(request))
        if room(request) == 0:
            writer.end()
        else:
            self._begin(request, preprocessed(request), reply, writer, self.mask(request))


class TextEngine(PythonEngine[Chat]):
    """The client's request in, OpenAI chunks out."""

    serves = (Chat,)

    def submit(self, request: Chat, reply: Reply) -> None:
        """Call the handler with the client's JSON."""
        if request.kind == "embedding":
            self._embed(request, reply)
            return
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
    if not _defines_a_function(ast.parse(file.read_bytes())):
        hint = f"{EXAMPLE}; a file that serves on its own: python {file.name}"
        raise UserError(f"{file} has no generate and no embed", hint)


def _defines_a_function(module: ast.Module) -> bool:
    """Whether running the file may make a `generate` or an `embed`; when in doubt it may."""
    if any(isinstance(node, ast.Global) and {*FUNCTIONS} & {*node.names} for node in ast.walk(module)):
        return True
    todo: list[ast.AST] = [*module.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in FUNCTIONS:
                return True
            continue  # names inside are not the file's
        if isinstance(node, ast.alias) and (node.asname or node.name.partition(".")[0]) in (*FUNCTIONS, "*"):
            return True
        if isinstance(node, ast.Name) and node.id in (*FUNCTIONS, "globals", "exec", "vars", "setattr"):
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


def load(file: Path, argv: list[str]) -> Mapping[str, Handler]:
    """Run the file once, as `python FILE argv...` would, and take its functions. Raises UserError."""
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
    found = {name: function for name in FUNCTIONS if (function := getattr(module, name, None)) is not None}
    if not found:
        raise UserError(f"{file} has no generate and no embed", EXAMPLE)
    return {name: Handler(function) for name, function in found.items()}


class _FileEngine(PythonEngine[RequestT]):
    """What both share. The file is loaded in a thread, for it may load a model too.

    With `generate` it answers, with `embed` it makes vectors, and it may have both.
    """

    async def start(self) -> None:
        """Check and load the file. Raises UserError for what is wrong with it."""
        arguments = self.options.arguments
        check(arguments, None)
        file = Path(arguments["file"])
        began = time.monotonic()
        text = "%s has not come back from its import for %g s: it loads something large, or serves on its own"
        slow = asyncio.get_running_loop().call_later(SLOW, log.warning, text, file, SLOW)
        try:
            found = await asyncio.to_thread(load, file, [str(word) for word in arguments.get("argv", ())])
        finally:
            slow.cancel()
        if "generate" in found:
            self.use(found["generate"])
        if "embed" in found:
            self.embed_with(found["embed"])
        log.info("%s has loaded %s in %.1f s", self.name, file, time.monotonic() - began)

    def _types(self, answers: tuple[str, ...]) -> tuple[str, ...]:
        """What clients may ask for. `answers`: with a `generate`."""
        return (*(answers if self.calls is not None else ()), *(("embeddings",) if self.embeddings is not None else ()))


class PyStr(_FileEngine[Chat], TextEngine):
    """The file gets the client's chat request, and yields chat.completion.chunk dicts."""

    name = "pystr"

    async def start(self) -> None:
        """Load the file; its own name is the model's."""
        await super().start()
        name = Path(self.options.arguments["file"]).stem
        self._card = self._card_without_files(name, kind="text", types=self._types(("chat",)))


class PyTok(_FileEngine[Generate], TokenEngine):
    """The file gets token ids with limits and sampling options, and yields dicts with the new token_ids."""

    name = "pytok"
    serves = (Generate, Embed)

    async def start(self) -> None:
        """Read the model's card, then the file."""
        card = await self._model_card()
        await super().start()
        card = msgspec.structs.replace(card, types=self._types(card.types))
        self._card = card_of(card, self.handler) if self.calls is not None else card
