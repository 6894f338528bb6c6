"""`dynamo.runtime`: serving and calling endpoints from one's own file; addresses and errors."""

from dynamod.discovery.keys import Address as EndpointId
from dynamod.engine.python.context import Context as Context
from dynamod.message.errors import BadRequest as InvalidArgument
from dynamod.message.errors import Cancelled as Cancelled
from dynamod.message.errors import DynamodError as DynamoException
from dynamod.message.errors import EngineFailed as StreamIncomplete
from dynamod.message.errors import Overloaded as WorkerUnavailable
from dynamod.message.errors import TimedOut as ConnectionTimeout
from dynamod.runtime.endpoint_client import Annotated as Annotated
from dynamod.runtime.endpoint_client import Client as Client
from dynamod.sdk.decorators import dynamo_endpoint as dynamo_endpoint
from dynamod.sdk.decorators import dynamo_worker as dynamo_worker
from dynamod.sdk.missing import missing
from dynamod.sdk.runtime import Component as Component
from dynamod.sdk.runtime import DistributedRuntime as DistributedRuntime
from dynamod.sdk.runtime import Endpoint as Endpoint
from dynamod.sdk.runtime import Namespace as Namespace

__all__ = [
    "Annotated",
    "Cancelled",
    "Client",
    "Component",
    "ConnectionTimeout",
    "Context",
    "DistributedRuntime",
    "DynamoException",
    "Endpoint",
    "EndpointId",
    "InvalidArgument",
    "Namespace",
    "StreamIncomplete",
    "WorkerUnavailable",
    "dynamo_endpoint",
    "dynamo_worker",
]

__getattr__ = missing(__name__, __all__)
