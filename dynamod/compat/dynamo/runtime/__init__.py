"""`dynamo.runtime`: addresses and errors of the runtime."""

from dynamod.message.errors import BadRequest as InvalidArgument
from dynamod.message.errors import Cancelled as Cancelled
from dynamod.message.errors import DynamodError as DynamoException
from dynamod.message.errors import EngineFailed as StreamIncomplete
from dynamod.message.errors import Overloaded as WorkerUnavailable
from dynamod.message.errors import TimedOut as ConnectionTimeout
from dynamod.registry.keys import Address as EndpointId

__all__ = [
    "Cancelled",
    "ConnectionTimeout",
    "DynamoException",
    "EndpointId",
    "InvalidArgument",
    "StreamIncomplete",
    "WorkerUnavailable",
]
