"""`ServiceConfig`: how a component reads the configuration at run time, in the form of the seed era."""

import json
import os
from collections.abc import Mapping
from typing import Any, ClassVar, cast

from dynamod.message.errors import UserError
from dynamod.message.hints import known_hint

ENV = "DYNAMO_SERVICE_CONFIG"
COMMON = "Common"
COMMON_CONFIGS = "common-configs"
SERVICE_ARGS = "ServiceArgs"


class MissingConfig(UserError, ValueError):
    """A component requires a key that the configuration does not have."""


def find_key(section: Mapping[str, Any], key: str) -> str | None:
    """`key` as the section spells it: `block-size` and `block_size` are one key."""
    if key in section:
        return key
    plain = key.replace("-", "_")
    return next((other for other in section if other.replace("-", "_") == plain), None)


class ServiceConfig(dict[str, Any]):
    """All sections by name. One per process, from env DYNAMO_SERVICE_CONFIG (JSON)."""

    _instance: ClassVar["ServiceConfig | None"] = None

    @classmethod
    def get_instance(cls) -> "ServiceConfig":
        """The configuration of this process; empty when there is none."""
        if ServiceConfig._instance is None:
            try:
                ServiceConfig._instance = cls(json.loads(os.environ.get(ENV) or "{}"))
            except (ValueError, TypeError) as error:
                raise UserError(f"{ENV} is not JSON, or no object: {error}") from None
        return ServiceConfig._instance

    def section(self, service: str) -> dict[str, Any]:
        """One section, empty when it is missing."""
        return cast("dict[str, Any]", self.get(service) or {})

    def require(self, service: str, key: str) -> Any:
        """A value that must be there. Raises MissingConfig, a UserError and ValueError."""
        section = self.section(service)
        found = find_key(section, key)
        if found is None:
            raise MissingConfig(f"{service}.{key} must be set in the configuration", known_hint(key, section))
        return section[found]

    def get_parsed_config(self, service: str) -> dict[str, Any]:
        """What the component itself sees: the named Common keys, then its own, without ServiceArgs."""
        return merge_common(self.section(COMMON), self.section(service))

    def as_args(self, service: str, prefix: str = "") -> list[str]:
        """The parsed config as an argv list, Common keys first.

        True is `--k`, False is `--k false`, a mapping is `--k <json>`, the rest `--k <text>`. With a prefix only keys
        that start with it are emitted, without it.
        """
        argv: list[str] = []
        for key, value in self.get_parsed_config(service).items():
            if not key.startswith(prefix):
                continue
            argv.append(f"--{key[len(prefix) :]}")
            if isinstance(value, bool):
                argv += [] if value else ["false"]
            else:
                argv.append(json.dumps(value) if isinstance(value, dict) else str(value))
        return argv


def merge_common(common: Mapping[str, Any], section: Mapping[str, Any]) -> dict[str, Any]:
    """The Common keys named in `common-configs`, unless the section has its own, then the section's."""
    own = {key: value for key, value in section.items() if key not in (SERVICE_ARGS, COMMON_CONFIGS)}
    merged: dict[str, Any] = {}
    for key in cast("list[str]", section.get(COMMON_CONFIGS) or []):
        found = find_key(common, key)
        if found is not None and find_key(own, found) is None:
            merged[found] = common[found]
    return {**merged, **own}
