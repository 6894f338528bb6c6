"""What `dynamo doctor` says of trust at this node: whether there is a secret, and what was not signed right."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from dynamod.message.errors import UserError

if TYPE_CHECKING:
    from dynamod.features.doctor.checks import Finding


async def checks(explicit: str | None) -> AsyncIterator["Finding"]:
    """Findings about the secret of this node's cluster. `explicit`: the path of the control socket, or None."""
    from dynamod.cli.client import Control
    from dynamod.extension.command import NoArguments
    from dynamod.features.doctor.checks import Finding

    from .commands import TRUST
    from .show import REASONS

    try:
        found = (await asyncio.to_thread(Control(explicit).ask, TRUST, NoArguments())).value
    except UserError:
        return  # no daemon, or one of an older release
    if not found.cluster:
        return
    if not found.digests:
        text = "the cluster has no secret: everyone with access to NATS or etcd can send requests and register workers"
        yield Finding("trust", "warn", text, "dynamo trust new FILE, and DYNAMOD_CLUSTER_SECRET_FILE for each daemon")
        return
    if found.mode == "off":
        text = "the cluster secret is not used: nothing is signed or checked"
        yield Finding("trust", "warn", text, "dynamo trust set accept, and DYNAMOD_TRUST=accept for the next start")
        return
    for one in found.wrong:
        who = f"node {one.node}" if one.node else "some node"
        text = f"{who}: {one.count} messages or values {REASONS.get(one.why, one.why)}"
        yield Finding(
            "trust", "warn", f"{text} {'refused' if found.mode == 'require' else 'taken'}", "see dynamo trust show"
        )
    if not found.wrong:
        yield Finding("trust", "ok", f"mode {found.mode}, secret {found.digests[0]}; all that came was signed")
