"""`dynamo.llm`: which model an endpoint serves; what its engine publishes of cache and load; indexes; block hashes."""

from dynamod.message.discovery import Capabilities as Capabilities
from dynamod.message.discovery import ModelCard as ModelDeploymentCard
from dynamod.sdk.bindings import compute_block_hash_for_seq_py as compute_block_hash_for_seq_py
from dynamod.sdk.indexers import ApproxKvIndexer as ApproxKvIndexer
from dynamod.sdk.indexers import KvIndexer as KvIndexer
from dynamod.sdk.indexers import OverlapScores as OverlapScores
from dynamod.sdk.indexers import RadixTree as RadixTree
from dynamod.sdk.missing import missing
from dynamod.sdk.publishers import ForwardPassMetrics as ForwardPassMetrics
from dynamod.sdk.publishers import FpmDirectPublisher as FpmDirectPublisher
from dynamod.sdk.publishers import KvEventPublisher as KvEventPublisher
from dynamod.sdk.publishers import KvStats as KvStats
from dynamod.sdk.publishers import WorkerMetricsPublisher as WorkerMetricsPublisher
from dynamod.sdk.publishers import WorkerStats as WorkerStats
from dynamod.sdk.register import ModelType as ModelType
from dynamod.sdk.register import register_llm as register_llm

__all__ = [
    "ApproxKvIndexer",
    "Capabilities",
    "ForwardPassMetrics",
    "FpmDirectPublisher",
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
