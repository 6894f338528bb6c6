"""Settings of the frontend that the Messages API adds."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option


class AnthropicSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations become prompts."""

    strip_anthropic_preamble: Annotated[
        bool,
        Meta(description="/v1/messages: leave out the first system line of agents that differs per session"),
        Option(
            "BOOL",
            "/v1/messages leaves out the first system line of agents, which differs per session (default: on)",
            "DYN_STRIP_ANTHROPIC_PREAMBLE",
        ),
    ] = True
