"""How trust looks on a terminal."""

from .commands import TrustState

MEANING = {
    "off": "nothing is signed or checked",
    "accept": "what this node says is signed; what others do not sign is taken and counted",
    "require": "only what is signed is taken",
}
REASONS = {
    "unsigned": "not signed",
    "damaged": "with a signature that cannot be read",
    "stranger": "signed with another secret",
    "forged": "with a signature that does not fit",
    "clock": "signed by a clock that differs",
    "replayed": "that came a second time",
}


def state(found: TrustState, _width: int | None = None) -> str:
    """`dynamo trust show`."""
    digests = [f"{digest} {'signs' if number == 0 else 'is taken'}" for number, digest in enumerate(found.digests)]
    lines = [
        f"node {found.node}: mode {found.mode}, {MEANING.get(found.mode, '')}".rstrip(", "),
        f"secrets: {', '.join(digests) or 'none'}",
        f"this daemon: {found.signed} signed, {found.proven} proven, {found.doubted} taken without, "
        f"{found.refused} refused",
    ]
    lines += [
        f"  {one.count} {REASONS.get(one.why, one.why)}{f' (node {one.node})' if one.node else ''}"
        for one in found.wrong
    ]
    if found.cluster and not found.digests:
        lines.append("warning: everyone with access to NATS or etcd can send requests and register workers here")
    return "\n".join(lines)
