"""Environment variables: the table of the page.

A variable that the code reads has a row here, and a row has a reader: `tests/test_manual_variables.py` compares both.
"""

from typing import NamedTuple

from dynamod.runtime.liveness import SETTINGS, Clocks


class Variable(NamedTuple):
    """A row. `default`: as a user would write it, or in words. `library`: reads the variable where dynamod does not."""

    name: str
    default: str
    meaning: str
    library: str = ""


class Group(NamedTuple):
    """Variables that one kind of process reads."""

    title: str
    intro: str
    variables: tuple[Variable, ...]


GROUPS = (
    Group(
        "Read by the daemon",
        "The daemon hands the variables of NATS and of TCP to its processes.",
        (
            Variable("DYNAMOD_NODE", "the host name", "name of this node"),
            Variable(
                "DYNAMOD_CLUSTER",
                "`auto`",
                "`off`: this node stays alone; `auto`: the servers that `NATS_SERVER` and `ETCD_ENDPOINTS` name, else "
                "servers of the same user or root at the usual ports of this machine",
            ),
            Variable(
                "DYNAMOD_REMOTE_COMMANDS",
                "`read`",
                "commands that this node takes from other nodes; `read`: commands that change nothing; `all`: every "
                "command except `serve` and `reload`; `off`: none; unset: as `read`, and commands that are signed "
                "with the cluster secret may change something",
            ),
            Variable(
                "DYNAMOD_CLUSTER_SECRET_FILE",
                "",
                "absolute path of the file with the cluster secret, mode 0600; two lines: the first signs, both "
                "are taken",
            ),
            Variable("DYNAMOD_CLUSTER_SECRET", "", "the cluster secret itself; two with a comma between them"),
            Variable(
                "DYNAMOD_TRUST",
                "`accept` with a secret, else `off`",
                "`off`: nothing is signed or checked; `accept`: what is not signed is taken and counted; `require`: "
                "only what is signed is taken",
            ),
            Variable(
                "DYNAMOD_TRUST_CLOCK_S", "`60`", "seconds by which the clock of another node may differ, from 1 to 3600"
            ),
            Variable("DYN_SYSTEM_PORT", "`-1`", "port for metrics and health of the node; 0: a free port; -1: none"),
            Variable("DYN_SYSTEM_HOST", "`127.0.0.1`", "address of that port"),
            Variable("DYNAMOD_DISCOVERY", "`etcd`", "store of the keys of all nodes: `etcd` or `kubernetes`"),
            Variable(
                "DYNAMOD_TCP_ADDRESS", "", "IP address of this node for requests of other nodes over TCP; unset: none"
            ),
            Variable("DYNAMOD_TCP_LISTEN", "`DYNAMOD_TCP_ADDRESS`", "address that is bound, like `0.0.0.0`"),
            Variable("DYNAMOD_TCP_PORTS", "any free port", "range of ports for these requests, like `7000-7099`"),
            Variable("NATS_SERVER", "", "servers for requests between nodes, like `nats://host:4222`; with commas"),
            Variable("NATS_AUTH_USERNAME", "", "user at NATS; needs the password"),
            Variable("NATS_AUTH_PASSWORD", "", "password of this user"),
            Variable("NATS_AUTH_TOKEN", "", "token for NATS"),
            Variable("NATS_AUTH_NKEY", "", "seed of an NKey for NATS"),
            Variable("NATS_AUTH_CREDENTIALS_FILE", "", "file with credentials for NATS"),
            Variable("NATS_TLS_CA", "authorities of the machine", "PEM file: authorities that NATS is trusted by"),
            Variable("NATS_TLS_CERT", "", "PEM file: client certificate for NATS; needs the key"),
            Variable("NATS_TLS_KEY", "", "PEM file: key of this certificate"),
            Variable("ETCD_ENDPOINTS", "", "endpoints of etcd, which holds leases of all nodes; several with commas"),
            Variable("ETCD_LEASE_TTL", "`10`", "whole seconds for which the leases of a dead node live on, 1 to 3600"),
            Variable("ETCD_AUTH_USERNAME", "", "user at etcd; needs the password"),
            Variable("ETCD_AUTH_PASSWORD", "", "password of this user"),
            Variable("ETCD_AUTH_CA", "authorities of the machine", "PEM file: authorities that etcd is trusted by"),
            Variable("ETCD_AUTH_CLIENT_CERT", "", "PEM file: client certificate for etcd; needs the key"),
            Variable("ETCD_AUTH_CLIENT_KEY", "", "PEM file: key of this certificate"),
            Variable(
                "DYN_TCP_TLS_CA_CERT_PATH",
                "",
                "PEM file: authorities of the certificates that nodes show to each other when KV blocks are read; "
                "needs the next two",
            ),
            Variable("DYN_TCP_TLS_CERT_PATH", "", "PEM file: certificate of this node, shown as server and as client"),
            Variable("DYN_TCP_TLS_KEY_PATH", "", "PEM file: key of this certificate"),
            Variable(
                "DYN_TCP_TLS_SERVER_NAME",
                "the address of the node",
                "name that the certificates of other nodes must have",
            ),
            Variable(
                "DYNAMOD_TCP_TLS",
                "`require` with certificates, else `off`",
                "`off`: no TLS for requests over TCP and for KV blocks; `accept`: other nodes come with TLS or "
                "without; `require`: only with TLS",
            ),
            Variable(
                "DYNAMOD_TCP_TLS_CRL",
                "",
                "PEM file: revoked certificates of other nodes (CRL of the authority), read again when it changes",
            ),
            Variable("DYNAMOD_GPUS", "`CUDA_VISIBLE_DEVICES`", "devices that workers may get, like `0,1`; empty: none"),
            Variable(
                "CUDA_VISIBLE_DEVICES", "all devices", "devices that workers may get where `DYNAMOD_GPUS` is not set"
            ),
            Variable("KUBERNETES_SERVICE_HOST", "", "set by Kubernetes in a pod: API server of the cluster"),
            Variable("DYNAMOD_KUBERNETES_URL", "that of the pod", "API server with `DYNAMOD_DISCOVERY=kubernetes`"),
            Variable("DYNAMOD_KUBERNETES_GRAPH", "`dynamod`", "label `dynamod.dev/graph` of one deployment"),
            Variable(
                "DYNAMOD_KUBERNETES_ACCOUNT",
                "where Kubernetes mounts it",
                "folder with the token, the namespace and the authorities of the service account",
            ),
            Variable("DYNAMOD_KUBERNETES_COST", "`false`", "`true`: a pod writes its open requests as deletion cost"),
            Variable("POD_NAME", "", "name of this pod; the template of the pod sets it from the field of the pod"),
            Variable("POD_NAMESPACE", "that of the service account", "namespace of this pod"),
            Variable("POD_UID", "", "uid of this pod"),
            Variable("KUBERNETES_SERVICE_PORT", "`443`", "set by Kubernetes in a pod: port of this server"),
            *(Variable(f"DYNAMOD_{key.upper()}", "", "a clock") for key in SETTINGS),
        ),
    ),
    Group(
        "Set by systemd for the daemon",
        "A command that starts a daemon keeps these variables from the daemon, except the folders.",
        (
            Variable("NOTIFY_SOCKET", "", "socket for messages to systemd"),
            Variable("WATCHDOG_USEC", "", "interval of the watchdog, in microseconds"),
            Variable("WATCHDOG_PID", "", "process that the watchdog expects"),
            Variable("LISTEN_FDS", "", "not used, and not handed on"),
            Variable("LISTEN_PID", "", "not used, and not handed on"),
            Variable("LISTEN_FDNAMES", "", "not used, and not handed on"),
            Variable("RUNTIME_DIRECTORY", "", "folder of the control socket"),
            Variable("STATE_DIRECTORY", "", "folder of the graph that the service starts again"),
            Variable("LOGS_DIRECTORY", "", "folder of kept log lines"),
        ),
    ),
    Group(
        "Read by every process",
        "",
        (
            Variable(
                "DYN_LOG",
                "`info`",
                "level (`error`, `warn`, `info`, `debug`, `trace`, `off`) and targets, like `debug` or "
                "`dynamod.router=trace,info`; every command refuses another word",
            ),
            Variable("DYN_LOGGING_JSONL", "`0`", "`1`: log lines are JSON"),
            Variable("DYN_LOGGING_CONFIG_PATH", "", "file with levels"),
            Variable("DYN_LOG_USE_LOCAL_TZ", "`0`", "`1`: local time in log lines"),
            Variable("DYN_SDK_DISABLE_ANSI_LOGGING", "`0`", "`1`: no colours in log lines"),
            Variable("NO_COLOR", "", "any text: no colours in log lines"),
            Variable("TERM", "", "`dumb`: no colours in log lines"),
            Variable(
                "DYNAMOD_FEATURES",
                "",
                "`-name,-other` switches features off, `none` all of them: [features](features.md)",
            ),
        ),
    ),
    Group(
        "Read by commands and Python files",
        "",
        (
            Variable(
                "DYNAMOD_SOCKET",
                "in `$RUNTIME_DIRECTORY`, `$XDG_RUNTIME_DIR`, `/run/dynamod`, else in a private temporary folder",
                "control socket",
            ),
            Variable("DISPLAY", "", "`dynamo console` opens a browser where the machine has a display"),
            Variable("WAYLAND_DISPLAY", "", "the same"),
            Variable("XDG_RUNTIME_DIR", "", "folder of the control socket where `DYNAMOD_SOCKET` is not set"),
            Variable(
                "XDG_STATE_HOME",
                "`~/.local/state`",
                "folder of the history of chats, of data of `dynamo infra`, and of the [audit log](../how-to/audit.md)",
            ),
            Variable("HOME", "", "as `XDG_STATE_HOME` without `/.local/state`, for the audit log"),
            Variable(
                "XDG_CACHE_HOME",
                "`~/.cache`",
                "folder of KV blocks in files, converted models, fetched tokenizers, and passed checks of tokenizers",
            ),
            Variable(
                "DYN_DEPLOYMENT_CONFIG", "", "a whole config as JSON; replaces the file and `--Component.key` flags"
            ),
            Variable("DYNAMO_HOST", "", "as `dynamo serve --host`"),
            Variable("DYNAMO_PORT", "", "as `dynamo serve --port`"),
            Variable("DYNAMO_SERVICE_NAME", "", "as `dynamo serve --service-name`"),
            Variable(
                "DYNAMO_IMAGE", "", "`image` of a service whose decorator names none; dynamod does not start images"
            ),
            Variable(
                "DYN_WORKER_GRACEFUL_SHUTDOWN_TIMEOUT",
                "`30`",
                "seconds that open requests of a Python file get at its end",
            ),
            Variable("PATH", "", "folders of commands, also of `nats-server`, `etcd` and `llama-server`"),
            Variable("PYTHONPATH", "", "folders of Python files; a daemon that runs from a copy of itself adds one"),
            Variable("_DYNAMO_RUN_COMPLETE", "", "a line for which `dynamo-run` prints the next words, set by a shell"),
            Variable("COLUMNS", "width of the terminal", "width of tables, also of tables in a pipe"),
        ),
    ),
    Group(
        "Read by the frontend",
        "A key of the config wins over its variable.",
        (
            Variable("DYN_HTTP_BODY_LIMIT_MB", "`45`", "largest request body, in megabytes"),
            Variable("DYN_HTTP_BODIES_LIMIT_MB", "`512`", "largest sum of the bodies in work, in megabytes"),
            Variable("DYN_HTTP_OVERLOAD_STATUS_CODE", "`503`", "status when no worker can take a request"),
            Variable(
                "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS",
                "off",
                "milliseconds between comments on streams without events",
            ),
            Variable("DYN_HTTP_ALLOWED_ORIGINS", "", "origins of browser pages that may send requests, with commas"),
            Variable(
                "DYN_HTTP_TRUSTED_PROXIES",
                "",
                "addresses and networks of proxies whose `X-Forwarded-For` names the client in records, with commas",
            ),
            Variable(
                "DYN_STREAM_TOOL_ARGUMENTS",
                '`"responses,messages"`',
                "APIs whose streams have arguments of tool calls in pieces: `chat`, `responses`, `messages`, or `none`",
            ),
            Variable(
                "DYN_MALFORMED_TOOL_CALLS",
                '`"arguments"`',
                "`content`: a tool call whose arguments are no JSON object is content",
            ),
            Variable(
                "DYN_UNENFORCED_TOOL_CHOICE",
                '`"ask"`',
                "`refuse`: 400 where an engine cannot enforce the calls that `tool_choice` asks for",
            ),
            Variable("DYN_AUDIT", "`false`", "`true`: an [audit log](../how-to/audit.md)"),
            Variable("DYN_AUDIT_DIR", "", "folder of the audit log, which turns it on, too"),
            Variable("OTEL_EXPORT_ENABLED", "`false`", "`true`: [traces](../how-to/tracing.md)"),
            Variable(
                "OTEL_EXPORTER_OTLP_ENDPOINT",
                "`http://localhost:4317`",
                "URL of the collector; of `http/protobuf` `http://localhost:4318`",
            ),
            Variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "", "URL of the collector for spans, as it is"),
            Variable(
                "OTEL_EXPORTER_OTLP_LOGS_ENDPOINT", "", "URL of the collector for the request trace's sink `otel`"
            ),
            Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "`grpc`", "`grpc` or `http/protobuf`"),
            Variable("OTEL_EXPORTER_OTLP_HEADERS", "", "headers for the collector: `NAME=VALUE`, with commas"),
            Variable("OTEL_TRACES_SAMPLE_RATIO", "`1`", "share of the traces begun here that are kept"),
            Variable("OTEL_SERVICE_NAME", "`dynamo`", "`service.name` of the spans"),
            Variable("DYN_REQUEST_TRACE", "`false`", "`true`: a [request trace](../how-to/request-trace.md)"),
            Variable(
                "DYN_REQUEST_TRACE_RECORDS",
                "`request_end,tool`",
                "`request_end`, `request_payload`; turns the trace on",
            ),
            Variable("DYN_REQUEST_TRACE_SINKS", "`file`", "where rows go: `file`, `stderr`, `nats`, `otel`, `s3`"),
            Variable(
                "DYN_REQUEST_TRACE_FILE_PATH",
                "`/tmp/dynamo-request-trace`",
                "file of `jsonl`; of `jsonl_gz`: begin of names",
            ),
            Variable("DYN_REQUEST_TRACE_FILE_FORMAT", "`jsonl_gz`", "`jsonl_gz` or `jsonl`"),
            Variable("DYN_REQUEST_TRACE_CAPACITY", "`1024`", "rows that may wait for a sink"),
            Variable("DYN_REQUEST_TRACE_FILE_BUFFER_BYTES", "`1048576`", "bytes that are written at once"),
            Variable("DYN_REQUEST_TRACE_FILE_FLUSH_INTERVAL_MS", "`1000`", "milliseconds for which rows are gathered"),
            Variable("DYN_REQUEST_TRACE_FILE_ROLL_BYTES", "`268435456`", "uncompressed bytes of a file"),
            Variable("DYN_REQUEST_TRACE_FILE_ROLL_LINES", "", "rows of a file"),
            Variable("DYN_REQUEST_TRACE_NATS_SUBJECT", "`dynamo.request_trace.v1`", "subject of the sink `nats`"),
            Variable("DYN_REQUEST_TRACE_OTEL_MAX_PAYLOAD_BYTES", "`4194304`", "bytes of a row of the sink `otel`"),
            Variable("DYN_REQUEST_TRACE_S3_BUCKET", "", "bucket of the sink `s3`"),
            Variable("DYN_REQUEST_TRACE_S3_REGION", "`AWS_REGION`", "region of the bucket"),
            Variable("DYN_REQUEST_TRACE_S3_PREFIX", "", "what the names of objects begin with"),
            Variable(
                "DYN_REQUEST_TRACE_S3_ROLL_UNCOMPRESSED_BYTES",
                "`67108864`",
                "bytes of rows, before packing, of the largest object",
            ),
            Variable("DYN_REQUEST_TRACE_S3_FLUSH_INTERVAL_MS", "`10000`", "milliseconds for which rows are gathered"),
            Variable("DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_ENDPOINT", "", "where events of tools are taken"),
            Variable(
                "DYN_REQUEST_TRACE_TOOL_EVENTS_ZMQ_TOPIC", "", "first frame of events that are taken; default: any"
            ),
            Variable(
                "DYN_REQUEST_TRACE_HTTP_HEADER_CAPTURE_LIST",
                "",
                "headers that payload rows have",
            ),
            Variable("DYN_HTTP_GUARD_STATUS", "`false`", "`true`: status routes need a key too"),
            Variable("DYN_API_KEYS", "", "`/v1/*` asks for one of these keys; with commas"),
            Variable("DYN_API_KEY_FILE", "", "file of such keys, one per line"),
            Variable("DYN_CLIENT_KEYS_FILE", "", "file of [client keys](../how-to/api-keys.md) with rate limits"),
            Variable(
                "DYN_STRIP_ANTHROPIC_PREAMBLE",
                "`true`",
                "the line of agents that differs per session is left out of prompts of `/v1/messages`",
            ),
            Variable("DYN_CONSOLE", "`true`", "`false`: no [console](../how-to/console.md) at `/`"),
            Variable(
                "DYN_CONSOLE_ADMIN",
                "`false`",
                "`true`: without API keys the [console](../how-to/console.md) shows logs and changes processes",
            ),
            Variable("DYN_OLLAMA_API", "`true`", "`false`: [Ollama's API](../how-to/ollama.md) at `/api/...` is off"),
            Variable(
                "DYN_OLLAMA_MANAGE_MODELS", "`false`", "`true`: clients may download and delete models by `/api/pull`"
            ),
            Variable(
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "`false`", "`true`: clients may load and unload LoRA adapters"
            ),
            Variable("DYN_LORA_DIR", "", "folder of LoRA adapters that clients may load"),
            Variable("DYN_METRICS_PREFIX", "`dynamo_frontend`", "prefix of [metrics](metrics.md)"),
            Variable("DYN_ENABLE_FORCE_INCLUDE_USAGE", "`false`", "`true`: usage at the end of every stream"),
            Variable("DYN_MIGRATION_LIMIT", "of the model", "migrations of a request"),
            Variable("DYN_MIGRATION_MAX_SEQ_LEN", "no limit", "tokens above which an answer does not migrate"),
        ),
    ),
    Group(
        "Read by downloads of models",
        "A download runs in the environment of the worker, the command or the Python file. The library "
        "`huggingface_hub` reads the variables.",
        (
            Variable("HF_TOKEN", "", "token for gated and private models", "huggingface_hub"),
            Variable("HF_ENDPOINT", "`https://huggingface.co`", "another hub", "huggingface_hub"),
            Variable("HF_HOME", "`~/.cache/huggingface`", "folder of the cache and the token", "huggingface_hub"),
            Variable("HF_HUB_CACHE", "`$HF_HOME/hub`", "folder of the cache", "huggingface_hub"),
            Variable("HF_HUB_OFFLINE", "`0`", "`1`: only the cache", "huggingface_hub"),
        ),
    ),
    Group(
        "Read by engines",
        "An OpenAI server as engine reads its key from the variable that the argument `api_key_env` names, like "
        "`OPENAI_API_KEY`. Engines have variables of their own, which they read themselves.",
        (
            Variable("DYN_TOKEN_ECHO_DELAY_MS", "`10`", "milliseconds between tokens of the echo engines"),
            Variable(
                "DYN_KVBM_CPU_CACHE_GB",
                "`0`",
                "gigabytes of KV blocks in memory of the host, for workers whose `engine_args` lack `kv_host_gb`",
            ),
            Variable(
                "DYN_KVBM_DISK_CACHE_GB",
                "`0`",
                "gigabytes of KV blocks in files, for workers whose `engine_args` lack `kv_disk_gb`",
            ),
            Variable(
                "RAYON_NUM_THREADS",
                "`OMP_NUM_THREADS`, else one less than the cores",
                "threads of mistral.rs on a CPU; `1` is much faster for small models on busy machines",
            ),
            Variable("OMP_NUM_THREADS", "the cores", "threads of llama.cpp on a CPU"),
        ),
    ),
    Group(
        "Set by dynamod for its processes",
        "",
        (
            Variable("DYNAMO_SERVICE_CONFIG", "", "the configuration of all components as JSON"),
            Variable("DYNAMOD_LOG_PIPE", "", "`1`: the daemon reads the log lines of the process"),
        ),
    ),
    Group(
        "Set by dynamod for libraries, unless already set",
        "",
        (
            Variable("VLLM_WORKER_MULTIPROC_METHOD", "`spawn`", "a fork would take locks and sockets along"),
            Variable("VLLM_LOGGING_LEVEL", "`WARNING`", "`INFO` with the log level `debug`"),
            Variable("VLLM_NO_USAGE_STATS", "`1`", "vLLM reports nothing to its makers"),
            Variable("VLLM_CPU_OMP_THREADS_BIND", "`nobind`", "other processes use the cores of a CPU too"),
            Variable("VLLM_RPC_BASE_PATH", "private folder", "sockets of vLLM"),
            Variable("VLLM_CPU_KVCACHE_SPACE", "a share of the memory", "gigabytes of KV cache on a CPU"),
            Variable("VLLM_NIXL_SIDE_CHANNEL_HOST", "address of this machine", "address for NIXL hand-offs"),
            Variable("VLLM_NIXL_SIDE_CHANNEL_PORT", "a free port", "port for NIXL hand-offs"),
            Variable("SGLANG_USE_CPU_ENGINE", "`1` without a GPU", "SGLang computes on the CPU"),
            Variable("SGLANG_BLOCK_NONZERO_RANK_CHILDREN", "`0`", "a further node says that it has loaded"),
            Variable("TORCHDYNAMO_DISABLE", "`1` on a CPU", "nothing is compiled"),
            Variable("TORCHINDUCTOR_CACHE_DIR", "temporary folder of the user", "compiled kernels stay"),
            Variable("TMPDIR", "private folder", "sockets of engines"),
            Variable("OPENBLAS_NUM_THREADS", "`1`", "threads of the forecasts of a planner"),
            Variable("NIXL_LOG_LEVEL", "`WARN`", "level of NIXL's log"),
            Variable("RUST_LOG", "`warn`", "level of mistral.rs' log"),
            Variable("GGML_NO_BACKTRACE", "`1`", "llama.cpp starts no debugger when it aborts"),
            Variable("GRPC_VERBOSITY", "`ERROR`", "the client of etcd writes no lines about handshakes"),
            Variable("HF_HUB_DISABLE_PROGRESS_BARS", "`1`", "progress is shown in log lines"),
            Variable("HF_HUB_VERBOSITY", "`error`", "the last error is said once"),
        ),
    ),
)
"""All variables, by their readers. The page shows the clocks of processes in a table of their own."""

CLOCKS = {
    "heartbeat_timeout": "without a heartbeat and without work: the process is stuck",
    "stall_timeout": "in an engine step without progress and without work: the process is stuck",
    "compute_timeout": "in a step that computes without progress (at least 20 times the usual time): the process is "
    "stuck",
    "slow_timeout": "a step is slow after this time, if it also takes 8 times the usual time",
    "kill_timeout": "a stuck process is killed and started again",
}
"""What each clock means, by its key."""


def clock_default(key: str) -> str:
    """Seconds of a clock where nothing is set."""
    value = getattr(Clocks(), SETTINGS[key])
    return "4 times the heartbeat timeout" if value is None else f"`{value:g}`"
