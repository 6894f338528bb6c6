"""What engines share that choose tokens on their own and keep to forms of answers."""

from typing import TYPE_CHECKING

from dynamod.message import tokens
from dynamod.message.discovery import ModelCard
from dynamod.message.worker import Generate, Grammar

if TYPE_CHECKING:
    from dynamod.structured.grammars import Grammars
    from dynamod.structured.mask import AnswerMask
    from dynamod.structured.vocabulary import Encodes


class OwnForms:
    """Mixed into an `Engine`, in front of it: grammars are compiled here, by the tokenizer of the card's model."""

    _card: ModelCard
    _grammars: "Grammars | None" = None

    def grammars(self) -> "Grammars":
        """What makes matchers, by the tokenizer of the model, which is loaded when a request asks for a form."""
        if self._grammars is None:
            from dynamod.structured.grammars import Grammars

            self._grammars = Grammars(self._tokenizer, self._card.eos_token_ids)
        return self._grammars

    def mask(self, request: Generate) -> "AnswerMask | None":
        """For an engine that chooses tokens outside of this code; None: any token may come. Raises EngineFailed."""
        grammar = request.grammar
        if grammar is None:
            return None
        from dynamod.structured.mask import AnswerMask

        prior, grammars = tokens.unpack(request.prior_output), self.grammars()
        return AnswerMask(lambda: grammars.matcher(grammar).behind(prior))

    def prepared(self, grammar: Grammar) -> bool:
        """Whether it has been compiled."""
        return self.grammars().ready(grammar)

    async def prepare(self, grammar: Grammar) -> None:
        """Compile it in a thread."""
        await self.grammars().prepare(grammar)

    def _tokenizer(self) -> "Encodes":
        from dynamod.preprocess.source import open_card
        from dynamod.preprocess.tokenizer import Tokenizer

        return Tokenizer.from_source(open_card(self._card), use_fast_backend=False)
