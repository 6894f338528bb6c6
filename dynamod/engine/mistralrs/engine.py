"""The mistral.rs engine: each request has a thread that reads mistralrs' iterator and hands its text to the loop.

mistralrs streams text only for chat requests, and templates even a string; so prompts are rendered here, by the same
code as for token engines, and go through a template that changes nothing (`loading.VERBATIM`).
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import msgspec

from dynamod.message.discovery import Capabilities
from dynamod.message.errors import EngineFailed, RequestError
from dynamod.message.worker import BEHIND, LATER_TAGS, WITH_CHAT, Chat, Grammar
from dynamod.parsers import choose
from dynamod.preprocess.model import Model, Prepared
from dynamod.preprocess.output import TextOutput
from dynamod.transport.base import Reply

from ..base import Engine, EngineOptions, EngineStatistics, Spawn
from ..step_times import StepTimes
from .loading import load, max_seqs, one_prompt_at_a_time
from .lowering import LoweredRequest, PlainText, form, lower, prepare

log = logging.getLogger("dynamod.engine")

CLOSE = 3.0
"""Seconds that `close` waits for the threads; one that hangs inside the engine is given up."""

_PROBE = "The probe: 1, 2, 3."
_BROKEN = ("canceled", "cancelled", "error")


@dataclass(slots=True, eq=False)
class _Stream:
    """One request. All but `cancelled` belongs to the event loop."""

    reply: Reply
    cancelled: bool = False  # set by the loop, read by the thread
    future: Future[None] | None = None
    running: bool = False
    pending: int = 0  # tokens the engine's next step has to do for this stream


class MistralRs(Engine[Chat]):
    """Serves text; counts and stops as `preprocess.output` has them."""

    name = "mistralrs"
    serves = (Chat,)
    capabilities = Capabilities(logit_bias=True, grammars=True, forms=(BEHIND, WITH_CHAT, "structural_tag", LATER_TAGS))

    def __init__(self, options: EngineOptions, spawn: Spawn) -> None:
        super().__init__(options, spawn)
        self._streams: set[_Stream] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._sending = threading.Lock()
        self._prompt = threading.Lock()  # held until the prompt is computed, where only one may be
        self._tokens = 0
        self._moved = 0.0
        self._times = StepTimes()

    async def start(self) -> None:
        """Read the card, then load. Raises UserError."""
        options = self.options
        threads = max_seqs(options.arguments)
        self._loop = asyncio.get_running_loop()
        card = await self._model_card(kind="text")
        self._model = await asyncio.to_thread(Model.load, card)
        self._one_prompt = await asyncio.to_thread(one_prompt_at_a_time, options)
        self._runner = await asyncio.to_thread(load, options)
        limit = self._runner.max_sequence_length() or 0
        if limit and (not card.context_length or limit < card.context_length):
            card = msgspec.structs.replace(card, context_length=limit)
        tool, reasoning = choose(self._model.template_source)
        card = msgspec.structs.replace(card, tool_call_parser=tool or "", reasoning_parser=reasoning or "")
        self._card = self._model.card = card
        self._compare_tokenizers()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="mistralrs")

    def submit(self, request: Chat, reply: Reply) -> None:
        """Check and render now; the rest happens in a thread."""
        prepared = prepare(self._model, request)
        grammar = form(self._model, prepared, request.grammar) if request.grammar is not None else None
        stream = _Stream(reply)
        self._streams.add(stream)
        self._idle.clear()
        stream.future = self._pool.submit(self._serve, stream, prepared, grammar, request.request_id)
        reply.on_cancel(lambda: self._cancel(stream))

    def statistics(self) -> EngineStatistics:
        """Mistralrs does not report steps: a step is taken to last since the last text of any stream."""
        running = [stream for stream in self._streams if stream.running]
        step_tokens = sum(stream.pending for stream in running)
        return EngineStatistics(
            running=len(running),
            waiting=len(self._streams) - len(running),
            tokens=self._tokens,
            in_step_for=self._loop.time() - self._moved if running else None,
            step_tokens=step_tokens,
            usual_step_seconds=self._times.usual(step_tokens) if running else 0.0,
        )

    async def close(self) -> None:
        """End every thread, and give the model back."""
        for stream in list(self._streams):
            self._cancel(stream)
        try:
            async with asyncio.timeout(CLOSE):
                await self._idle.wait()
        except TimeoutError:
            log.warning("mistralrs: %d requests hang in the engine", len(self._streams))
        if hasattr(self, "_pool"):
            self._pool.shutdown(wait=not self._streams, cancel_futures=True)
            del self._runner

    # On the event loop.

    def _cancel(self, stream: _Stream) -> None:
        """Stop reading at the next text. mistral.rs frees the slot when its iterator is dropped."""
        stream.cancelled = True
        if stream.future is not None and stream.future.cancel():
            self._ended(stream)

    def _started(self, stream: _Stream, lowered: LoweredRequest) -> None:
        if not any(other.running for other in self._streams):
            self._moved = self._loop.time()
        stream.running = True
        stream.pending = lowered.prompt_tokens

    def _cached(self, stream: _Stream, count: int) -> None:
        usage = {"prompt_tokens_details": {"cached_tokens": count}}
        stream.reply.items(({"choices": [], "usage": usage},))

    def _text(self, stream: _Stream, text: str, count: int, finish: str | None, prompt_tokens: int | None) -> None:
        now = self._loop.time()
        self._times.add(sum(one.pending for one in self._streams if one.running), now - self._moved)
        self._moved = now
        stream.pending = 1
        self._tokens += count
        stream.reply.text(text, count, finish, prompt_tokens)
        if finish is not None:
            self._ended(stream)

    def _failed(self, stream: _Stream, error: RequestError) -> None:
        self._ended(stream)
        stream.reply.raised(error)

    def _ended(self, stream: _Stream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._idle.set()

    # In a thread.

    def _on_loop(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop is closed
            log.debug("mistralrs: an answer came after the end")

    def _serve(self, stream: _Stream, prepared: Prepared, grammar: Grammar | None, request_id: str) -> None:
        """One request from start to end. Whatever happens, the stream ends."""
        try:
            if not stream.cancelled:
                lowered = lower(self._model, prepared, request_id, grammar)
                with ExitStack() as turn:
                    if self._one_prompt:
                        turn.enter_context(self._prompt)
                    if not stream.cancelled:
                        self._on_loop(self._started, stream, lowered)
                        self._read(stream, lowered, turn)
        except RequestError as error:
            self._on_loop(self._failed, stream, error)
        except BaseException as error:  # also a panic of the engine, which is no Exception
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            log.warning("mistralrs: request %s failed: %s", request_id, reason)
            text = f"mistralrs raised {type(error).__name__}; the worker's log has more under this request's id"
            self._on_loop(self._failed, stream, EngineFailed(text))
        finally:
            self._on_loop(self._ended, stream)

    def _read(self, stream: _Stream, lowered: LoweredRequest, turn: ExitStack) -> None:
        """Hand its text to the loop. `turn` is over with the first text: then the prompt is computed."""
        output, plain, counted = TextOutput(lowered.stops, include_stop=lowered.include_stop), PlainText(), 0
        for chunk in self._send(lowered):
            turn.close()
            if stream.cancelled:
                return
            choice = chunk.choices[0]
            text, finish, count = plain.of(choice), "length" if choice.finish_reason == "length" else "stop", 1
            if choice.finish_reason is None:
                visible = output.push_text(text, count)
            elif choice.finish_reason in _BROKEN:
                raise EngineFailed(f"mistralrs ended the answer with '{choice.finish_reason}'")
            else:
                # A character of several tokens came as one text, an ending token as none: the usage has them all.
                count = max(0, chunk.usage.completion_tokens - counted) if chunk.usage is not None else 1
                details = chunk.usage.prompt_tokens_details if chunk.usage is not None else None
                if (cached := getattr(details, "cached_tokens", None)) is not None:  # else it is 0, or not known
                    self._on_loop(self._cached, stream, cached)
                visible = output.push_text(text) + output.end(finish)
            counted += count
            prompt = lowered.prompt_tokens if output.finish is not None else None
            self._on_loop(self._text, stream, visible, count, output.finish, prompt)
            if output.finish is not None:
                return
        raise EngineFailed("mistralrs stopped in the middle of the answer")

    def _send(self, lowered: LoweredRequest) -> Any:
        from mistralrs import ChatCompletionRequest

        request = ChatCompletionRequest(**lowered.fields)
        with self._sending:  # a Runner is borrowed mutably for the call: a second one at the same time is refused
            return self._runner.send_chat_completion_request(request)

    def _compare_tokenizers(self) -> None:
        expected, name = self._model.tokenizer.encode(_PROBE, add_special=True), self._card.name
        if list(self._runner.tokenize_text(_PROBE, True, None)) != expected:
            log.warning("mistralrs tokenises %s otherwise than its files say: prompt_tokens may differ", name)
