"""`dynamo.llm`: which model an endpoint serves; what its engine tells of KV cache and load; indexes; block hashes."""

from dynamod.daemon.distributed.bindings import compute_block_hash_for_seq_py as compute_block_hash_for_seq_py
from dynamod.daemon.distributed.bindings import missing
from dynamod.daemon.distributed.indexers import ApproxKvIndexer as ApproxKvIndexer
from dynamod.daemon.distributed.indexers import KvIndexer as KvIndexer
from dynamod.daemon.distributed.indexers import OverlapScores as OverlapScores
from dynamod.daemon.distributed.indexers import RadixTree as RadixTree
from dynamod.daemon.distributed.publishers import ForwardPassMetrics as ForwardPassMetrics
from dynamod.daemon.distributed.publishers import KvEventPublisher as KvEventPublisher
from dynamod.daemon.distributed.publishers import KvStats as KvStats
from dynamod.daemon.distributed.publishers import WorkerMetricsPublisher as WorkerMetricsPublisher
from dynamod.daemon.distributed.publishers import WorkerStats as WorkerStats
from dynamod.daemon.distributed.register import ModelType as ModelType
from dynamod.daemon.distributed.register import register_llm as register_llm
from dynamod.message.discovery import Capabilities as Capabilities
from dynamod.message.discovery import ModelCard as ModelDeploymentCard

__all__ = [
    "ApproxKvIndexer",
    "Capabilities",
    "ForwardPassMetrics",
    "KvEventPublisher",
    "KvIndexer",
    "KvStats",
    "ModelDeploymentCard",
    "ModelType",
    "OverlapScores",
    "RadixTree",
    "WorkerMetricsPublisher",
    "WorkerStats",
    "compute_block_hash_for_seq_py",
    "register_llm",
]

__getattr__ = missing(__name__, __all__)
