"""`dynamo.llm`: telling front doors which model an endpoint serves; model cards; block hashes."""

from dynamod.daemon.distributed.bindings import compute_block_hash_for_seq_py as compute_block_hash_for_seq_py
from dynamod.daemon.distributed.bindings import missing
from dynamod.daemon.distributed.register import ModelType as ModelType
from dynamod.daemon.distributed.register import register_llm as register_llm
from dynamod.message.registry import Capabilities as Capabilities
from dynamod.message.registry import ModelCard as ModelDeploymentCard

__all__ = ["Capabilities", "ModelDeploymentCard", "ModelType", "compute_block_hash_for_seq_py", "register_llm"]

__getattr__ = missing(__name__, __all__)
