"""Requests of clients into `Generate` messages for token engines.

prepared = model.prepare_chat(request)            # checks, chat template: on the event loop
generate = model.encode(prepared, request_id)     # tokenising: off the loop if model.needs_thread(prepared.prompt)
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from dynamod.message.discovery import ModelCard
from dynamod.message.errors import BadRequest, unsupported
from dynamod.message.openai import ChatRequest, Common
from dynamod.message.tokens import count, pack
from dynamod.message.worker import Generate, Sampling, Stops

from .conditions import check_context, check_token_ids, fit, sampling_of, stops_of
from .conversation import as_dict, check_roles, kwargs_of, last_text, last_user_text, tools_of
from .source import open_card
from .template import ChatTemplate
from .tokenizer import Tokenizer

_THREAD_AT = {"fastokens": 100_000, "tokenizers": 2_500, "process": -1}  # characters; at most about 1 ms of work
_LONGEST_TOKEN = 256  # characters; only bounds how many tokens a text has at least


class Prepared(msgspec.Struct, frozen=True):
    """A request after its checks, before tokenising. Either `prompt` or `ids` (packed) is set.

    `suffix`: the model fills in between the prompt and this text.
    """

    request: Common
    param: Literal["messages", "prompt"]
    stops: Stops  # not yet cut to the context
    sampling: Sampling
    prompt: str = ""
    ids: bytes = b""
    add_special: bool = False
    suffix: str = ""

    @property
    def text(self) -> str:
        """All that is to be tokenised."""
        return self.prompt + self.suffix


class Model:
    """Tokenizer and chat template of one card. `templates` by name; "tool_use" serves requests with tools."""

    def __init__(self, card: ModelCard, tokenizer: Tokenizer, templates: dict[str, ChatTemplate]) -> None:
        self.card = card
        self.tokenizer = tokenizer
        self.templates = templates

    @classmethod
    def load(cls, card: ModelCard, *, use_fast_backend: bool = True, apart: bool = False) -> "Model":
        """Load what the card names. Raises UserError when a file is missing, or the chat template is not valid.

        Without `use_fast_backend` it loads sooner and tokenises slowly until `tokenizer.use_fast_backend` is called.
        `apart`: see `Tokenizer.from_source`.
        """
        source = open_card(card)
        tokens = dict(source.tokens)
        bos, eos = tokens.pop("bos_token", ""), tokens.pop("eos_token", "")
        kept = source.templates.keys() & {"default", "tool_use"}
        templates = {name: ChatTemplate(source.templates[name], bos, eos, tokens=tokens) for name in kept}
        return cls(card, Tokenizer.from_source(source, use_fast_backend=use_fast_backend, apart=apart), templates)

    @property
    def template_source(self) -> str:
        """The text of its chat templates: it shows how the model says reasoning and calls of tools."""
        return "\n".join(template.source for template in self.templates.values())

    def prepare_chat(self, request: ChatRequest) -> Prepared:
        """Check a chat request and make its prompt. Raises BadRequest."""
        stops, sampling = self._conditions(request)
        ids = self._given_ids(request)
        if ids:
            return Prepared(request, "messages", stops, sampling, ids=ids)
        if request.nvext is not None and request.nvext.use_raw_prompt:
            return Prepared(request, "messages", stops, sampling, last_user_text(request), add_special=True)
        self._fits(
            sum([message.length for message in request.messages]), "messages"
        )  # templates keep the lock while they copy it
        prompt = self.render(request)
        self._fits(len(prompt), "messages")
        return Prepared(request, "messages", stops, sampling, prompt)

    def prepare_prompts(self, request: Common, prompts: Sequence[str | list[int]], suffix: str = "") -> list[Prepared]:
        """Check a request and its prompts, each a text or token ids; `suffix`: what follows each. Raises BadRequest."""
        stops, sampling = self._conditions(request)
        ids = self._given_ids(request)
        if suffix:
            stops = self._infill_stops(stops, texts=not ids and all(isinstance(prompt, str) for prompt in prompts))
        prepared: list[Prepared] = []
        for prompt in prompts:
            if ids:
                prepared.append(Prepared(request, "prompt", stops, sampling, ids=ids))
            elif isinstance(prompt, str):
                self._fits(len(prompt) + len(suffix), "prompt")
                prepared.append(Prepared(request, "prompt", stops, sampling, prompt, add_special=True, suffix=suffix))
            else:
                check_token_ids(prompt, "prompt", self.tokenizer.vocab_size)
                prepared.append(Prepared(request, "prompt", stops, sampling, ids=pack(prompt)))
        return prepared

    def encode(self, prepared: Prepared, request_id: str) -> Generate:
        """Tokenise the prompt and make the message. Safe in a thread. Raises BadRequest."""
        ids = prepared.ids or self._ids(prepared)
        tokens, length = count(ids), self.card.context_length
        check_context(tokens, length, prepared.param)
        nvext = prepared.request.nvext
        return Generate(
            request_id=request_id,
            model=self.card.name,
            token_ids=ids,
            stops=fit(prepared.stops, length - tokens) if length else prepared.stops,
            sampling=prepared.sampling,
            eos_token_ids=self.card.eos_token_ids,
            mdc_sum=self.card.mdc_sum,
            annotations=tuple(nvext.annotations or ()) if nvext is not None else (),
        )

    def _ids(self, prepared: Prepared) -> bytes:
        tokenizer, infill = self.tokenizer, self.tokenizer.infill
        if not prepared.suffix or infill is None:
            return tokenizer.encode_packed(prepared.prompt, prepared.add_special)
        bos = [index for index in tokenizer.encode("", add_special=True)[:1] if index == tokenizer.bos_id]
        return pack(infill.prompt(prepared.prompt, prepared.suffix, tuple(bos), tokenizer.encode))

    def _infill_stops(self, stops: Stops, *, texts: bool) -> Stops:
        """With the tokens that end what is filled in. `texts`: whether all prompts are texts."""
        if self.tokenizer.infill is None:
            raise unsupported("suffix", f"`suffix`: the model {self.card.name!r} has no tokens to fill in text")
        if not texts:
            raise BadRequest("`suffix` needs prompts that are texts", param="suffix")
        if stops.ignore_eos:
            return stops
        hidden = dict.fromkeys((*stops.stop_token_ids_hidden, *self.tokenizer.infill.ends))
        return msgspec.structs.replace(stops, stop_token_ids_hidden=tuple(hidden))

    def render(self, request: ChatRequest) -> str:
        """Return the formatted prompt of a chat request. Raises BadRequest."""
        tools, kwargs = tools_of(request), kwargs_of(request)
        template = self.templates.get("tool_use") if tools else None
        template = template or self.templates.get("default") or self.templates.get("tool_use")
        if template is None:
            why = f"The model {self.card.name!r} has no chat template; use /v1/completions."
            raise BadRequest(why, param="messages")
        proceed = request.continue_final_message or False
        generate = not proceed if request.add_generation_prompt is None else request.add_generation_prompt
        if proceed and generate:
            why = "`continue_final_message` and `add_generation_prompt` exclude each other"
            raise BadRequest(why, param="continue_final_message")
        check_roles(request.messages, template)
        messages = [as_dict(message, template.form(message.role)) for message in request.messages]
        text = template.render(messages, tools, generate, **kwargs)
        return _without_end(text, last_text(request.messages[-1])) if proceed else text

    def needs_thread(self, prompt: str) -> bool:
        """Whether tokenising `prompt` takes so long that it must not happen on the event loop."""
        return len(prompt) > _THREAD_AT[self.tokenizer.backend_for(prompt)]

    def _conditions(self, request: Common) -> tuple[Stops, Sampling]:
        """Everything that can be wrong without the prompt is found before it is rendered and tokenised."""
        vocab_size = self.tokenizer.vocab_size
        return stops_of(request, self.card, vocab_size), sampling_of(request, self.card, vocab_size)

    def _given_ids(self, request: Common) -> bytes:
        """`nvext.token_data` as packed ids, which takes the place of a prompt."""
        given = request.nvext.token_data if request.nvext is not None else None
        if given is None:
            return b""
        check_token_ids(given, "nvext.token_data", self.tokenizer.vocab_size)
        return pack(given)

    def _fits(self, characters: int, param: str) -> None:
        """Refuse at once what cannot fit however it is tokenised: megabytes are not worth the work."""
        limit = self.card.context_length
        if limit and characters > (limit + 1) * _LONGEST_TOKEN:
            check_context(characters // _LONGEST_TOKEN, limit, param, at_least=True)


def _without_end(text: str, content: str) -> str:
    """The rendered prompt cut right after the last message's words, so that the model continues in it."""
    place = text.rfind(content.strip())
    if place < 0 or not content.strip():
        raise BadRequest("`continue_final_message` needs a last message that the template shows", param="messages")
    return text[: place + len(content.strip())]
