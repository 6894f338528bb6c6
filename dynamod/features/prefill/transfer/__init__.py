"""KV blocks of prompts, from the worker that computes them to the worker that answers."""

from .base import Block, TransferError
from .reader import read
from .server import BlockServer
from .sessions import Session, Sessions, SessionStatistics

__all__ = ["Block", "BlockServer", "Session", "SessionStatistics", "Sessions", "TransferError", "read"]
