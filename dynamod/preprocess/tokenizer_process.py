"""The reference of a large tokenizer in a process of its own: `python -m dynamod.preprocess.tokenizer_process`.

`tokenizers` keeps the lock of the interpreter for as long as it loads a file, a second for 262,144 tokens, and an event
loop that streams answers waits for that lock. So the process loads the file, and encodes until `fastokens` is loaded
here. It also writes the file anew as `fastokens` reads it soonest, because `fastokens` parses JSON under the lock too.
"""

import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

LARGE = 8_000_000
"""Bytes of a tokenizer.json from which on a process loads it; a smaller one pauses the event loop for less."""
WAIT = 60.0
"""Seconds for an answer of the process, the first one included; then the process is killed."""

log = logging.getLogger(__name__)


class _Added(msgspec.Struct, frozen=True, array_like=True):
    content: str
    special: bool


class _Facts(msgspec.Struct, frozen=True, array_like=True):
    """What the process says of the tokenizer. `decoder`: its state as JSON, None when it has no decoder."""

    vocabulary: dict[str, int]
    added: dict[int, _Added]
    decoder: str | None


class ProcessReference:
    """Has the methods of a `tokenizers.Tokenizer` that `Tokenizer` calls, without truncation and padding.

    The process ends when the last user of this object has dropped it. When the process fails, `build` loads the
    tokenizer here. Safe from several threads; methods that encode block. Raises OSError, EOFError or
    msgspec.DecodeError for a file that the process does not load, or that is no BPE.
    """

    def __init__(self, file: Path, build: Callable[[], Any]) -> None:
        self._build = build
        self._own: Any = None
        self._lock = threading.Lock()
        self._fd = os.memfd_create("tokenizer")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(file), str(self._fd)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=(self._fd,),
            )
        except BaseException:
            os.close(self._fd)
            raise
        weakref.finalize(self, _end, self._process, self._fd)
        facts = msgspec.json.decode(self._exchange(b""), type=_Facts)
        self._vocabulary, self._added = facts.vocabulary, facts.added
        state = functools.partial(str.encode, facts.decoder or "")
        self.decoder = SimpleNamespace(__getstate__=state) if facts.decoder is not None else None

    def no_truncation(self) -> None:
        """The process has done it."""

    no_padding = no_truncation

    def get_vocab(self, with_added_tokens: bool) -> dict[str, int]:
        """Ids by token, with added tokens."""
        return self._vocabulary

    def get_added_tokens_decoder(self) -> dict[int, _Added]:
        """Added tokens by id."""
        return self._added

    def token_to_id(self, token: str) -> int | None:
        """The id of a token."""
        return self._vocabulary.get(token)

    def id_to_token(self, index: int) -> str | None:
        """The token of an id."""
        return self._tokens.get(index)

    @functools.cached_property
    def _tokens(self) -> dict[int, str]:
        return {index: token for token, index in self._vocabulary.items()}

    def encode_batch_fast(self, texts: Sequence[str], add_special_tokens: bool) -> list[Any]:
        """Objects with `ids`, one per text. Raises UnicodeEncodeError for a text with lone surrogates."""
        return [self.encode(text, add_special_tokens) for text in texts]

    def encode(self, text: str, add_special_tokens: bool) -> Any:
        """An object with `ids`. Raises UnicodeEncodeError for a text with lone surrogates."""
        question = msgspec.json.encode((text, add_special_tokens)) + b"\n"
        with self._lock:
            if self._own is None:
                try:
                    return SimpleNamespace(ids=msgspec.json.decode(self._exchange(question), type=list[int]))
                except (OSError, EOFError) as error:
                    log.warning("the process of a tokenizer has failed (%r): the tokenizer is loaded here", error)
                    self._own = self._build()
                    self._own.no_truncation()
                    self._own.no_padding()
        return self._own.encode(text, add_special_tokens=add_special_tokens)

    def compact(self) -> str | None:
        """The path of the file as it was written anew, valid for as long as this object; None when that failed."""
        try:
            with self._lock:
                written = msgspec.json.decode(self._exchange(b"null\n"), type=bool)
        except (OSError, EOFError):
            written = False
        return f"/proc/self/fd/{self._fd}" if written else None

    def _exchange(self, question: bytes) -> bytes:
        """The answer. Raises OSError or EOFError when the process has ended, or does not answer in time."""
        write, read = self._process.stdin, self._process.stdout
        assert write is not None
        assert read is not None
        watch = threading.Timer(WAIT, self._process.kill)
        watch.daemon = True
        watch.start()
        try:
            write.write(question)
            write.flush()
            answer = read.readline()
        finally:
            watch.cancel()
        if not answer.endswith(b"\n"):
            raise EOFError(f"no answer, exit code {self._process.poll()}")
        return answer


def _end(process: subprocess.Popen[bytes], fd: int) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        try:
            pipe.close()
        except BrokenPipeError:
            pass
    process.wait()
    os.close(fd)


def process_reference(file: Path | None, build: Callable[[], Any]) -> ProcessReference | None:
    """The reference of a large file in a process; None for a small file, or when the process does not load the file."""
    try:
        if hasattr(os, "memfd_create") and file is not None and file.stat().st_size >= LARGE:  # Linux
            return ProcessReference(file, build)
    except (OSError, EOFError, msgspec.DecodeError) as error:
        log.debug("no process loads %s (%r), it is loaded here", file, error)
    return None


def _compact(file: str, fd: int) -> None:
    """Write a merge as one string, and tokens in descending order: `fastokens` parses that in half the time.

    Its parser puts tokens into a B-tree whose nodes it searches from the front, so each token is found to be the first.
    """
    data = msgspec.json.decode(Path(file).read_bytes())
    model = data["model"]
    model["vocab"] = dict(sorted(model["vocab"].items(), reverse=True))
    model["merges"] = [
        one if isinstance(one, str) or any(" " in half for half in one) else " ".join(one) for one in model["merges"]
    ]
    with open(fd, "wb") as out:
        out.write(msgspec.json.encode(data))


def main() -> None:
    """Write the file anew in a second process, load it in this one, and answer until standard input ends."""
    file, fd = sys.argv[1], int(sys.argv[2])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of a terminal is for the process that asks
    writer = os.fork()
    if not writer:
        try:
            os.close(sys.stdout.fileno())  # else its reader would not see that the other process has ended
            _compact(file, fd)
            os._exit(0)
        finally:
            os._exit(1)
    from tokenizers import Tokenizer

    reference: Any = Tokenizer.from_file(file)
    if type(reference.model).__name__ != "BPE":
        raise SystemExit(1)  # fastokens does not load it, so the reference is needed where the requests are
    reference.no_truncation()
    reference.no_padding()
    added = {key: _Added(one.content, one.special) for key, one in reference.get_added_tokens_decoder().items()}
    decoder = None if reference.decoder is None else reference.decoder.__getstate__().decode()
    answer: Any = _Facts(reference.get_vocab(with_added_tokens=True), added, decoder)
    while True:
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()
        line = sys.stdin.buffer.readline()
        if not line:
            return
        question = msgspec.json.decode(line, type=tuple[str, bool] | None)
        if question is None:
            answer = os.waitpid(writer, 0)[1] == 0
        else:
            answer = reference.encode(question[0], add_special_tokens=question[1]).ids


if __name__ == "__main__":
    main()
