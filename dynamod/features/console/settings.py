"""Settings of the frontend that the console adds."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option

GROUP = "console"
"""Heading of the flags in the help of dynamo-run."""


class ConsoleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether there is a console, and what it may do where no key is needed."""

    console: Annotated[
        bool,
        Meta(description="the console at / for browsers; off: / is a short page"),
        Option("BOOL", "show the console at / to browsers (default: on)", "DYN_CONSOLE", group=GROUP),
    ] = True
    console_admin: Annotated[
        bool,
        Meta(
            description="without API keys: the console shows logs and changes processes. With API keys this setting "
            "means nothing: a key with `admin: true` decides"
        ),
        Option(
            "BOOL",
            "let the console show logs and change processes where no API key is needed (default: off)",
            "DYN_CONSOLE_ADMIN",
            group=GROUP,
        ),
    ] = False
