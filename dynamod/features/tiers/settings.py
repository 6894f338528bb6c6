"""Settings of blocks that are read from other workers: a key of the processor's section, and a flag."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option


class PeerSettings(msgspec.Struct, frozen=True):
    """`kv_peer_fetch`: see its description."""

    kv_peer_fetch: Annotated[
        bool,
        Meta(description="KV blocks of prompts are read from another worker that has them, where that costs less"),
        Option("BOOL", "KV blocks of prompts are read from other workers, where that costs less (default: off)"),
    ] = False
