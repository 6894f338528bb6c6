"""Prompts of choices: computed by prefill workers, or had from elsewhere, for the instance that answers."""

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

    Features that extend this one give a function of the `StageContext`, which returns an
    `async def open(card, request, placement) -> stage.HandedPrompt | None`; it is asked where no prefill worker
    computes the prompt.
    """

    def __init__(self, context: StageContext) -> None:
        dispatch: PrefillDispatch = context.dispatch["prefill"]
        self._remote = RemotePrefill(
            *(context.view, context.transport, context.dispatcher, context.limits, dispatch.counts.__getitem__),
            enforced=dispatch.settings.enforce_disagg,
        )
        self._others = [make(context) for make in extensions("prefill")]

    def begin(self, request: Request) -> MakeStage:
        """Each choice of a request has a stage, if its engine can take prompts."""
        return self._stage

    def _stage(self, flight: InFlightRequest) -> PromptStage | None:
        choice = flight.choice
        can, request = choice.card.capabilities, choice.request
        scored = isinstance(request, Generate) and request.sampling.prompt_logprobs is not None  # computes it all
        if not can.handoff or scored:
            return None
        return PromptStage(partial(self._open, choice, set()), self._remote.needed(choice.card), flight)

    async def _open(
        self, choice: Choice, tried: set[int], request: Generate, placement: Placement
    ) -> HandedPrompt | None:
        remote = await self._remote.open(choice, tried, request, placement)
        if remote is not None:
            if choice.placed is not None:
                choice.placed(None, remote.placement.instance)
            return remote
        for source in self._others:
            found: HandedPrompt | None = await source(choice.card, request, placement)
            if found is not None:
                return found
        return None
