"""Settings of prompts that prefill workers compute: keys of the sections of processors and workers, and flags."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dynamod.extension.settings import Option

GROUP = "prefill and decode"
"""The heading of the flags in `--help`."""
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=0)]


class ConditionalDisagg(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """NVIDIA Dynamo's later condition (`--router-conditional-disagg-config`): when the answering worker keeps a prompt.

    `isl_bounding`: it lacks fewer than `eff_isl_threshold` tokens, and less than `eff_isl_ratio_threshold` of them all.
    `prefill_load`: each prefill worker has `prefill_busy_threshold` or more tokens of other prompts before it.
    `isl_or_load`: either. With `decode_busy_threshold` or more of its KV blocks in use it keeps none. None: no bound.
    """

    policy: Literal["isl_bounding", "prefill_load", "isl_or_load"] = "isl_bounding"
    eff_isl_threshold: Count = 2048
    eff_isl_ratio_threshold: Share = 0.7
    prefill_busy_threshold: Count | None = None
    decode_busy_threshold: Share | None = None


class PrefillSettings(msgspec.Struct, frozen=True):
    """Whether prefill workers are used, and whether only for prompts for which that pays.

    That is when less has to be computed before the prompt's end there than here (`PrefillState.there`, `here`). With
    one of NVIDIA Dynamo's limits it is for prompts of which the answering worker lacks more than
    `max_local_prefill_length` tokens, while fewer than `max_prefill_queue_size` prompts wait for prefill workers; or,
    instead of these, what the policy says.
    """

    remote_prefill: Annotated[
        bool,
        Meta(description="prompts are computed by prefill workers where there are some"),
        Option("BOOL", "whether prefill workers are used (default: on)", group=GROUP),
    ] = True
    conditional_disagg: Annotated[
        bool,
        Meta(description="only where that pays, by the loads of both pools, or as the next two keys say"),
        Option("BOOL", "off: prefill workers compute all prompts (default: on)", group=GROUP),
    ] = True
    max_local_prefill_length: Annotated[
        Count | None,
        Meta(description="tokens that the answering worker lacks, up to which it computes them itself (1000)"),
        Option(
            "N",
            "tokens of a prompt that the answering worker computes itself (default: as the loads of both pools say)",
            group=GROUP,
        ),
    ] = None
    max_prefill_queue_size: Annotated[
        Count | None,
        Meta(description="prompts that wait for prefill workers, from which on it computes all itself (2)"),
        Option(
            "N",
            "waiting prompts of prefill workers from which on the answering worker computes all prompts itself "
            "(default: none, and 2 with --max-local-prefill-length)",
            group=GROUP,
        ),
    ] = None
    router_conditional_disagg_config: Annotated[
        ConditionalDisagg | None,
        Meta(description="a policy with its bounds; replaces max_local_prefill_length and max_prefill_queue_size"),
        Option(
            "JSON",
            'a policy; replaces the two limits above: {"policy": "isl_bounding", "eff_isl_threshold": 2048}',
            group=GROUP,
        ),
    ] = None
    enforce_disagg: Annotated[
        bool,
        Meta(description="prefill workers compute all prompts; without one requests wait, and end with 503"),
        Option(
            "BOOL",
            "prefill workers compute all prompts; without one requests wait for it, and end with 503 (default: off)",
            group=GROUP,
        ),
    ] = False


class TransferSettings(msgspec.Struct, frozen=True):
    """How a worker keeps and sends the blocks of prompts."""

    session_lease: Annotated[
        Annotated[float, Meta(ge=2)] | None,  # readers show that they live each second
        Meta(description="prefill: seconds that a prompt's blocks are kept for a reader that shows no life (30)"),
    ] = None
    session_memory_gb: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="gigabytes (10^9 bytes) of blocks that wait for their readers, at most; "
            "others wait in the KV cache (1)"
        ),
    ] = None
    transfer_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            description="TCP port at which workers of other nodes read blocks; 0: a free one. "
            "The second worker of the component has the next one, and so on",
        ),
    ] = 0


class LivePrefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one model that replace those of the file while the system runs. None: not said."""

    remote_prefill: bool | None = None
    conditional_disagg: bool | None = None
    max_local_prefill_length: Count | None = None
    max_prefill_queue_size: Count | None = None

    def over(self, settings: PrefillSettings) -> PrefillSettings:
        """The settings that hold then. A limit that is said here holds instead of a policy, too."""
        said = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if "max_local_prefill_length" in said or "max_prefill_queue_size" in said:
            said["router_conditional_disagg_config"] = None
        return msgspec.structs.replace(settings, **said)
