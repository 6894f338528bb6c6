"""`from dynamo.runtime.logging import configure_dynamo_logging`."""

from dynamod.daemon.distributed.bindings import configure_dynamo_logging as configure_dynamo_logging
