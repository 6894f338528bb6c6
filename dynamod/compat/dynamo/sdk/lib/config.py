"""`from dynamo.sdk.lib.config import ServiceConfig`."""

from dynamod.graph.service_config import ServiceConfig as ServiceConfig
