"""`in=text`: a conversation in the terminal; `in=stdin`: all of stdin is one prompt."""

import contextlib
import os
import re
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from dynamod.cli.interrupt import Interrupts

from .client import Answer, ChatClient, Refused

Read = Callable[[], Awaitable[str]]
"""Reads a line. Raises EOFError and KeyboardInterrupt."""
Label = list[tuple[str, str]]
"""Texts with their styles."""
HELP = """\
  /clear   forget the conversation
  /model   say which models there are; /model NAME takes another
  /stats   say tokens and tokens per second after each answer, or no more
  /help    this
  /exit    end (as Ctrl-D, or Ctrl-C at the prompt)
Enter sends, Alt-Enter begins another line. Ctrl-C while an answer comes ends the answer."""
COMMANDS = ("/clear", "/model", "/stats", "/help")


class Chat:
    """A conversation: what was said so far goes with every question."""

    def __init__(self, interrupts: Interrupts, client: ChatClient, model: str, read: Read, *, stats: bool) -> None:
        self._interrupts, self._client, self._model, self._read, self._stats = interrupts, client, model, read, stats
        self._messages: list[dict[str, str]] = []

    async def run(self) -> int:
        """Until the user leaves. Returns the exit code."""
        print(f"Talking to {self._model}. Ctrl-C to exit, /help for more.", flush=True)
        while True:
            try:
                line = (await self._read()).strip()
            except (EOFError, KeyboardInterrupt):
                return 0
            if line in ("/exit", "/quit"):
                return 0
            if re.match(r"/[a-z]+(\s|$)", line):  # a path is no command
                await self._command(line)
            elif line:
                await self._turn(line)

    async def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "/clear":
            self._messages.clear()
            print("The conversation is forgotten.")
        elif word == "/help":
            print(HELP)
        elif word == "/stats":
            self._stats = not self._stats
            print(f"Tokens per second are {'said' if self._stats else 'not said'}.")
        elif word not in COMMANDS:
            print(f"There is no {word}; /help says what there is.")
        else:
            names = await self._client.models()
            if rest.strip() in names:
                self._model = rest.strip()
                print(f"Talking to {self._model}.")
            else:
                print(f"models: {', '.join(names) or 'none'}" + (f"; none is called {rest.strip()}" if rest else ""))

    async def _turn(self, line: str) -> None:
        """One question with its answer. What has failed is not part of the conversation."""
        self._messages.append({"role": "user", "content": line})
        answer = Answer()
        try:
            with _quiet():
                async with self._interrupts.interruptible():
                    await self._client.show(self._model, self._messages, answer)
        except Refused as error:
            hint = "; /clear forgets the conversation" if "maximum context length" in str(error) else ""
            print(f"{chr(10) if answer.pieces else ''}error: {error}{hint}", flush=True)
            if not answer.pieces:
                self._messages.pop()
                return
        except self._interrupts.Interrupted:
            print("...", end="")
        self._messages.append({"role": "assistant", "content": answer.text})
        print(flush=True)
        if self._stats and answer.tokens_out:
            speed = answer.tokens_out / max(answer.seconds, 1e-3)
            print(f"({answer.tokens_in} tokens in, {answer.tokens_out} out, {speed:.1f} tokens/s)", flush=True)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What is typed while an answer comes is not shown in the middle of it, and stands at the next prompt."""
    if not sys.stdin.isatty():
        yield
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(number, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)


def _labels(encoding: str) -> tuple[Label, Label]:
    """What stands before a line while it is typed, and once it is sent; plain where Unicode cannot be written."""
    marks = [("ansigreen", "? "), ("bold", "User › ")], [("ansigreen", "✔ "), ("bold", "User · ")]
    try:
        "".join(text for label in marks for _, text in label).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return [("bold", "User: ")], [("bold", "User: ")]
    return marks


def reader() -> Read:
    """Reads a line with editing and history. What is logged meanwhile stands above the prompt."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.application import get_app
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.patch_stdout import patch_stdout

    history: History = InMemoryHistory()
    path = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "dynamod/history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
        history = FileHistory(str(path))
    except OSError:
        pass  # a home that cannot be written to: nothing is remembered
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _another_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(history=history, multiline=True, key_bindings=keys)
    asking, sent = map(FormattedText, _labels(sys.stdout.encoding))

    def label() -> FormattedText:
        return sent if get_app().is_done else asking

    async def read() -> str:
        with patch_stdout(raw=True) if sys.stderr.isatty() else contextlib.nullcontext():
            return await session.prompt_async(label, handle_sigint=False)

    return read


async def answer_once(prompt: str, interrupts: Interrupts, client: ChatClient, model: str) -> int:
    """Ask, print the answer as it comes. Returns the exit code."""
    answer = Answer()
    try:
        async with interrupts.interruptible():
            await client.show(model, [{"role": "user", "content": prompt}], answer)
    except Refused as error:
        print(f"\nerror: {error}" if answer.pieces else f"error: {error}", file=sys.stderr)
        return 1
    except interrupts.Interrupted:
        return 130
    if not answer.text.endswith("\n"):
        print(flush=True)
    return 0
