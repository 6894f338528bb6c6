"""`dynamo.llm`: model cards."""

from dynamod.message.registry import Capabilities as Capabilities
from dynamod.message.registry import ModelCard as ModelDeploymentCard

__all__ = ["Capabilities", "ModelDeploymentCard"]
