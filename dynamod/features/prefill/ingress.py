"""Prompts of choices: computed by prefill workers, or had from elsewhere, for the instance that answers."""

from collections.abc import Awaitable
from functools import partial

from dynamod.extension.installed import extensions
from dynamod.message.worker import Generate, Request
from dynamod.migration.base import Choice
from dynamod.migration.request import InFlightRequest
from dynamod.migration.stages import MakeStage, StageContext
from dynamod.router.placement import Placement

from .dispatch import PrefillDispatch
from .remote import RemotePrefill
from .stage import HandedPrompt, PromptStage


class Prompts:
    """Makes the stages of choices.

    Features that extend this one give a function of the `StageContext`, which returns `open(card, request, placement)`;
    that is asked where no prefill worker computes the prompt, and returns as `stage.OpenPrompt` does. The first one
    that returns something to await is the only one. They give None where their settings rule that out.
    """

    def __init__(self, context: StageContext) -> None:
        dispatch: PrefillDispatch = context.dispatch["prefill"]
        self._remote = RemotePrefill(
            *(context.view, context.transport, context.dispatcher, context.limits, dispatch.counts.__getitem__),
            enforced=dispatch.settings.enforce_disagg,
        )
        self._others = [other for make in extensions("prefill") if (other := make(context)) is not None]

    def begin(self, request: Request) -> MakeStage:
        """Each choice of a request has a stage, if its engine can take prompts, and they may come from elsewhere.

        A choice that begins before the first prefill worker is there has its prompt computed where it is answered.
        """
        return self._stage

    def _stage(self, flight: InFlightRequest) -> PromptStage | None:
        choice = flight.choice
        can, request = choice.card.capabilities, choice.request
        scored = isinstance(request, Generate) and request.sampling.prompt_logprobs is not None  # computes it all
        if not can.handoff or scored or not (self._others or self._remote.serves(choice.card)):
            return None
        return PromptStage(partial(self._open, choice, set()), self._remote.needed(choice.card), flight)

    def _open(
        self, choice: Choice, tried: set[int], request: Generate, placement: Placement
    ) -> Awaitable[HandedPrompt | None] | None:
        if self._remote.serves(choice.card):
            return self._computed(choice, tried, request, placement)
        return self._elsewhere(choice, request, placement)

    async def _computed(
        self, choice: Choice, tried: set[int], request: Generate, placement: Placement
    ) -> HandedPrompt | None:
        remote = await self._remote.open(choice, tried, request, placement)
        if remote is not None:
            if choice.placed is not None:
                choice.placed(None, remote.placement.instance)
            return remote
        other = self._elsewhere(choice, request, placement)
        return None if other is None else await other

    def _elsewhere(
        self, choice: Choice, request: Generate, placement: Placement
    ) -> Awaitable[HandedPrompt | None] | None:
        for source in self._others:
            found: Awaitable[HandedPrompt | None] | None = source(choice.card, request, placement)
            if found is not None:
                return found
        return None
