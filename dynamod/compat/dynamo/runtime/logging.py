"""`from dynamo.runtime.logging import configure_dynamo_logging`."""

from dynamod.sdk.bindings import configure_dynamo_logging as configure_dynamo_logging
