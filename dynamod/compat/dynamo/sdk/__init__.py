"""`from dynamo.sdk import service, endpoint, depends`: the decorators of graphs."""

from dynamod.graph.service import DynamoTransport as DynamoTransport
from dynamod.graph.service import abstract_endpoint as abstract_endpoint
from dynamod.graph.service import api as api
from dynamod.graph.service import async_on_start as async_on_start
from dynamod.graph.service import depends as depends
from dynamod.graph.service import dynamo_endpoint as dynamo_endpoint
from dynamod.graph.service import endpoint as endpoint
from dynamod.graph.service import liveness as liveness
from dynamod.graph.service import on_shutdown as on_shutdown
from dynamod.graph.service import readiness as readiness
from dynamod.graph.service import service as service
from dynamod.sdk.missing import missing

__all__ = [
    "DynamoTransport",
    "abstract_endpoint",
    "api",
    "async_on_start",
    "depends",
    "dynamo_endpoint",
    "endpoint",
    "liveness",
    "on_shutdown",
    "readiness",
    "service",
]

__getattr__ = missing(__name__, __all__)
