"""The tokenizer of a served model: text to ids by the fastest library that agrees, ids to text by table.

`fastokens` encodes some 40 times faster than `tokenizers`, and is used when it loads the model and gives the same ids
for a probe text; `tokenizers` is the reference otherwise. `Tokenizer.backend` is the one in use.
"""

import logging
from array import array
from typing import Any, Literal

from dynamod.message.errors import BadRequest
from dynamod.message.tokens import pack, unpack

from .decoder import Decoder, make_decoder
from .infill import infill_of
from .source import Source
from .table import build_table
from .tokenizer_process import ProcessReference, process_reference

Backend = Literal["fastokens", "tokenizers", "process"]

log = logging.getLogger(__name__)

_PROBE = (
    "The quick brown fox jumps over the lazy dog; it's 12:45, isn't it? I'LL say they'd've gone.\n\n"
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\\t\" + 'a' * 3  # comment\n\t\tif (a&&b||c) {x[0]+=1;}\r\n"
    "1 22 333 4444 55555 1234567890 3.14159 1,000,000 0xDEADBEEF ½ ² ٣٤٥ 一二三\n"
    "Straße naïve ÉCOLE ǅ İstanbul Ελληνικά Русский עברית العربية हिन्दी ไทย 한국어 日本語テキスト 中文字符。「引用」\n"
    "e\u0301 a\u0308\u0323 n\u0303 q\u0307\u0323 ﬁ Å \u1e9b\u0323 가 \u1100\u1161\u11a8 😀👍🏽👩‍👩‍👧‍👦🇩🇪 ☃︎ 𝔘𝔫𝔦 𐍈\n"
    "   leading,  double,   triple    spaces\u00a0nbsp\u2003em\u200bzero\u3000wide \t\v\f\x1c tabs   \n \n  \n\n\n   "
    "https://example.org/a?b=c&d=%20#e user@example.com $100 50% <b>&amp;</b> [INST] {{ x }} "
    "▁ ▁▁ Ġ Ċ \x00\x7f\ufeff AAAAAAAA aaaaaaaaaaaaaaa ........ -------- ======== !!!! \ufffd\n"
)
# fastokens 0.3.5 takes this text for the byte token of SentencePiece vocabularies; texts with it go to `tokenizers`.
_LITERAL = "x <0x41><0xe6> <0x4"


class Tokenizer:
    """Encodes prompts and decodes answers of one model. Safe to use from several threads at once.

    `vocab_size`: one more than the largest id. `eos_ids`, `bos_id`: the model's. `special`: its special tokens, as
    text. `infill`: how it fills in between texts, None: not at all. `backend`: the library that encodes, `tokenizers`
    until `use_fast_backend` has been called; `process` is `tokenizers` in a process.
    """

    def __init__(self, reference: Any, source: Source) -> None:
        _uncut(reference)
        vocabulary: dict[str, int] = reference.get_vocab(with_added_tokens=True)
        self._table = build_table(reference, vocabulary)
        self._reference: Any = reference
        self.vocab_size: int = max(vocabulary.values(), default=-1) + 1
        self.infill = infill_of(vocabulary, source.infill)
        added = reference.get_added_tokens_decoder().values()
        self.special = tuple(sorted(token.content for token in added if token.special))
        self.eos_ids = source.eos_ids
        bos = source.bos_id if source.bos_id is not None else reference.token_to_id(source.tokens.get("bos_token", ""))
        self.bos_id: int | None = bos
        self._source = source
        self._fast: Any = None
        self._literal = False
        self.backend: Backend = "process" if isinstance(reference, ProcessReference) else "tokenizers"

    def use_fast_backend(self) -> None:
        """Let `fastokens` encode if it agrees. Loading it takes three times as long as all the rest, so a model is
        served before; the ids are the same. May run in a thread while others encode.
        """
        reference = self._reference
        if self._fast is not None:
            return
        fast = _fastokens(reference, self._source)
        if fast is not None:
            self._literal = not _agree(fast, reference, _LITERAL)
            self._fast = fast
            self.backend = "fastokens"
        if fast is not None and self._table and not self._literal:
            self._reference = None  # nothing needs it any more, and it holds tens of MB
        elif isinstance(reference, ProcessReference):  # needed for good, and a process would hold more memory
            self._reference = _uncut(self._source.build())
            self.backend = self.backend if fast is not None else "tokenizers"

    @classmethod
    def from_source(cls, source: Source, *, use_fast_backend: bool = True, apart: bool = False) -> "Tokenizer":
        """Load what has been opened already; without the fast backend the caller enables it later. Raises UserError.

        `apart`: a process loads a large file, so that threads of this process do not wait meanwhile.
        """
        reference = process_reference(source.tokenizer_file, source.build) if apart else None
        made = cls(source.build() if reference is None else reference, source)
        if reference is not None and made._table is None:
            made = cls(source.build(), source)
        if use_fast_backend:
            made.use_fast_backend()
        return made

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Return the ids of `text`; special tokens written in it are recognised.

        `add_special` puts before and after what the model wants there (BOS), but a BOS that the text itself starts
        with is not doubled. Raises BadRequest for text that is no Unicode (lone surrogates).
        """
        return list(unpack(self.encode_packed(text, add_special)))

    def encode_packed(self, text: str, add_special: bool = False) -> bytes:
        """Return `message.tokens.pack(encode(...))`, without a Python int per token where the backend allows."""
        reference = self._reference  # read before `_fast`, which is set before the reference is dropped
        try:
            if reference is None or self.backend_for(text) == "fastokens":
                data: bytes = self._fast.encode_batch_flat([text], add_special)[0]
            else:
                data = pack(reference.encode_batch_fast([text], add_special_tokens=add_special)[0].ids)
        except (UnicodeEncodeError, TypeError):
            raise BadRequest("The text contains lone surrogates and is not valid Unicode.") from None
        first = unpack(data[:8]) if add_special else ()
        return data[4:] if len(first) == 2 and first[0] == first[1] == self.bos_id else data

    def backend_for(self, text: str) -> Backend:
        """Return the encoder for `text`: `backend`, except for the few texts that it is known to encode wrongly."""
        return "tokenizers" if self._literal and "<0x" in text else self.backend

    def decode(self, ids: Any, skip_special: bool = True) -> str:
        """Return the text of a whole answer."""
        reference = self._reference
        if reference is not None and not isinstance(reference, ProcessReference):
            return str(reference.decode(list(ids), skip_special_tokens=skip_special))
        decoder = self.decoder(skip_special)
        return decoder.push(ids) + decoder.flush()

    def decoder(self, skip_special: bool = True, *, continuing: bool = False) -> Decoder:
        """Return a decoder for one answer; `continuing` keeps a space at its start (it continues from a prompt)."""
        return make_decoder(self._table, self._reference, skip_special=skip_special, continuing=continuing)

    def token_bytes(self, index: int) -> bytes | None:
        """Return the bytes that a token stands for (a space for ▁), or None for an id without a token."""
        if self._table is not None:
            pieces, _ = self._table.full
            return pieces[index] or None if 0 <= index < len(pieces) else None
        text = self._reference.id_to_token(index)  # without a table the reference stays
        return None if text is None else text.encode("utf-8", "replace")

    def pieces(self, special: bytes) -> list[bytes] | None:
        """Return the bytes of all ids, with `special` in front of special tokens; None: it has no such table."""
        if self._table is None:
            return None
        (full, _), (plain, _) = self._table.full, self._table.plain
        return [one if shown or not one else special + one for one, shown in zip(full, plain, strict=True)]

    @property
    def has_pieces(self) -> bool:
        """Whether `pieces` gives any."""
        return self._table is not None

    def token(self, index: int) -> str:
        """Return how the vocabulary writes the token of an id, e.g. "Ġhello"; "" for an id without a token."""
        found: str | None = (self._reference or self._fast).id_to_token(index)
        return found or ""


def _uncut(reference: Any) -> Any:
    """The tokenizer without the truncation and padding that its file asks for."""
    reference.no_truncation()
    reference.no_padding()
    return reference


def probe_text(reference: Any) -> str:
    """About 2 kB of everything that tokenizers differ in, with the model's own special tokens in between."""
    added = [token.content for token in reference.get_added_tokens_decoder().values()]
    parts = [f"{token} x{token}{token}\n" for token in (*added[:24], *added[-8:])]
    return f"{_PROBE}{''.join(parts)}{_PROBE[::-1]}"


def _fastokens(reference: Any, source: Source) -> Any | None:
    """A `fastokens.Tokenizer` that agrees with the reference on the probe text, or None."""
    try:
        import fastokens
    except ImportError:
        log.debug("fastokens is not installed, tokenizers encodes")
        return None
    try:
        if source.tokenizer_file is not None:
            compact = reference.compact() if isinstance(reference, ProcessReference) else None
            fast = fastokens.Tokenizer.from_file(compact or str(source.tokenizer_file))
        else:
            fast = fastokens.Tokenizer.from_json_str(reference.to_str())
        _uncut(fast)
        for probe in (probe_text(reference), "", " ", "a"):
            if not _agree(fast, reference, probe):
                log.debug("fastokens and tokenizers differ on %.20r, tokenizers encodes", probe)
                return None
    except Exception as error:  # fastokens names what it does not support by ValueError, and may panic on the rest
        log.debug("fastokens does not load %s (%s), tokenizers encodes", source.path, error)
        return None
    return fast


def _agree(fast: Any, reference: Any, text: str) -> bool:
    for special in (False, True):
        expected = array("I", reference.encode(text, add_special_tokens=special).ids).tobytes()
        if fast.encode_batch_flat([text], special)[0] != expected:
            return False
    return True
