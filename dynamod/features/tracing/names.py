"""Names of spans and attributes. The GenAI names are still being developed by OpenTelemetry: each stands here once."""

from collections.abc import Mapping

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
STREAM = "gen_ai.request.stream"
FINISH_REASONS = "gen_ai.response.finish_reasons"
FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
"""Seconds."""
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHE_READ = "gen_ai.usage.cache_read.input_tokens"

PARAMETERS: Mapping[str, str] = {
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
"""By fields of requests, the last one first where two have one name."""

OPERATIONS: Mapping[str, str] = {
    "chat_completions": "chat",
    "completions": "text_completion",
    "embeddings": "embeddings",
}
"""By `endpoint` of the metrics; others are `chat`."""

METHOD = "http.request.method"
ROUTE = "http.route"
PATH = "url.path"
STATUS = "http.response.status_code"
CLIENT = "client.address"
ERROR_TYPE = "error.type"

WORKER = "dynamo.worker.id"
WORKER_PROCESS = "dynamo.worker.process"
REQUEST_ID = "dynamo.request.id"
"""What `dynamo explain` takes."""
