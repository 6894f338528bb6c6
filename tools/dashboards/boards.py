"""The dashboards: fleet, model, workers, router and cache, prefill and decode, planner."""

from .panels import MODEL, PROCESS, Board, Panel, largest, mean, per, quantiles, rate, ratio, total

FRONTEND = "dynamo_frontend"
WORKER = "dynamod_worker"
ENGINE = f"{WORKER}_engine"
HANDOFF = f"{WORKER}_handoff"
ROUTER = "dynamod_router"
PLANNER = "dynamo_planner"

FLEET = Board(
    "fleet",
    "dynamod: fleet",
    {
        "Requests": (
            Panel(
                "Requests per second",
                "reqps",
                {"{{model}} {{status}}": rate(f"{FRONTEND}_requests_total", MODEL, "model", "status")},
            ),
            Panel(
                "Errors per second by class",
                "reqps",
                {"{{error_type}}": rate(f"{FRONTEND}_requests_total", f'{MODEL}, status="error"', "error_type")},
                "`overload`: add workers. `internal`: look for ERROR in `dynamo logs`.",
            ),
            Panel("Time to first token", "s", quantiles(f"{FRONTEND}_time_to_first_token_seconds")),
            Panel("Time between tokens", "s", quantiles(f"{FRONTEND}_inter_token_latency_seconds")),
            Panel(
                "Open and waiting requests",
                "short",
                per(
                    "model",
                    open=total(f"{FRONTEND}_inflight_requests", MODEL, "model"),
                    without_a_token=total(f"{FRONTEND}_queued_requests", MODEL, "model"),
                    all_workers_busy=total(f"{FRONTEND}_router_queue_pending_requests", MODEL, "model"),
                ),
                "`all workers busy` grows: add workers, or turn the planner on.",
            ),
            Panel(
                "Output tokens per second",
                "short",
                {"{{model}}": rate(f"{FRONTEND}_output_tokens_total", MODEL, "model")},
            ),
        ),
        "Processes": (
            Panel(
                "Age of the last progress",
                "s",
                {"{{process}}": largest("dynamod_process_progress_age", PROCESS, "process")},
                "A worker with running requests and an old progress is stuck: `dynamo ps`.",
            ),
            Panel(
                "Requests of workers",
                "short",
                per(
                    "process",
                    running=total("dynamod_process_running", PROCESS, "process"),
                    waiting=total("dynamod_process_waiting", PROCESS, "process"),
                ),
            ),
            Panel(
                "Restarts per minute",
                "short",
                {"{{supervisor}} {{child}}": f"60 * {rate('dynamod_child_restarts_total', '', 'supervisor', 'child')}"},
                "`dynamo ps` has the last error of each process.",
            ),
            Panel(
                "Answers, and slow processes",
                "short",
                per(
                    "process",
                    answers=largest("dynamod_process_answers", PROCESS, "process"),
                    slow=largest("dynamod_process_slow", PROCESS, "process"),
                ),
                "`answers` 0: the process is stopped or stuck.",
            ),
            Panel(
                "Leases and keys",
                "short",
                {
                    "leases": total("dynamod_registry_leases", ""),
                    "keys": total("dynamod_registry_keys", ""),
                    "keys of other nodes": total("dynamod_registry_foreign", ""),
                },
            ),
            Panel(
                "Pauses of the event loop",
                "s",
                quantiles(f"{FRONTEND}_event_loop_delay_seconds", "process"),
                "Above 0.05 s: add a frontend process.",
            ),
        ),
    },
)

MODELS = Board(
    "model",
    "dynamod: model",
    {
        "Answers": (
            Panel("Time of a request", "s", quantiles(f"{FRONTEND}_request_duration_seconds")),
            Panel("Time to first token", "s", quantiles(f"{FRONTEND}_time_to_first_token_seconds")),
            Panel(
                "Tokens per request, mean",
                "short",
                per(
                    "model",
                    prompt=mean(f"{FRONTEND}_input_sequence_tokens", MODEL, "model"),
                    answer=mean(f"{FRONTEND}_output_sequence_tokens", MODEL, "model"),
                    from_the_cache=mean(f"{FRONTEND}_cached_tokens", MODEL, "model"),
                ),
            ),
            Panel(
                "Clients that left",
                "reqps",
                {"{{model}}": rate(f"{FRONTEND}_model_cancellation_total", MODEL, "model")},
            ),
        ),
        "Before the worker": (
            Panel(
                "Time of the stages, mean",
                "s",
                {"{{stage}}": mean(f"{FRONTEND}_stage_duration_seconds", MODEL, "stage")},
            ),
            Panel(
                "Template and tokenizer, mean",
                "s",
                per(
                    "model",
                    template=mean(f"{FRONTEND}_template_seconds", MODEL, "model"),
                    tokenizer=mean(f"{FRONTEND}_tokenize_seconds", MODEL, "model"),
                ),
            ),
            Panel(
                "Requests without a token by stage",
                "short",
                {"{{stage}} {{phase}}": total(f"{FRONTEND}_stage_requests", MODEL, "stage", "phase")},
                "`dynamo top` says why they wait.",
            ),
            Panel(
                "Refused, and migrated",
                "reqps",
                {
                    "refused {{model}}": rate(f"{FRONTEND}_model_rejection_total", MODEL, "model"),
                    "migrated {{migration_type}}": rate(f"{FRONTEND}_model_migration_total", MODEL, "migration_type"),
                },
            ),
        ),
    },
)

WORKERS = Board(
    "worker",
    "dynamod: workers",
    {
        "Engine": (
            Panel("Tokens per second", "short", {"{{process}}": rate(f"{ENGINE}_tokens_total", PROCESS, "process")}),
            Panel(
                "Running and waiting",
                "short",
                per(
                    "process",
                    running=total(f"{ENGINE}_running", PROCESS, "process"),
                    waiting=total(f"{ENGINE}_waiting", PROCESS, "process"),
                ),
            ),
            Panel("Time of a request at the worker", "s", quantiles(f"{WORKER}_request_duration_seconds", "process")),
            Panel("Steps per second", "short", {"{{process}}": rate(f"{ENGINE}_steps_total", PROCESS, "process")}),
            Panel(
                "Learned time of a step",
                "s",
                {"{{process}}": largest(f"{ENGINE}_usual_step_seconds", PROCESS, "process")},
            ),
            Panel(
                "Taken, refused, cancelled",
                "reqps",
                per(
                    "process",
                    taken=rate(f"{WORKER}_accepted_total", PROCESS, "process"),
                    refused=rate(f"{WORKER}_refused_total", PROCESS, "process"),
                    cancelled=rate(f"{WORKER}_cancelled_total", PROCESS, "process"),
                ),
            ),
        ),
        "KV cache": (
            Panel(
                "Share of the blocks in use",
                "percentunit",
                {"{{process}}": largest("dynamo_component_gpu_cache_usage_percent", PROCESS, "process")},
                "Near 1 requests wait or give way to others: add workers.",
            ),
            Panel(
                "Blocks",
                "short",
                per(
                    "process",
                    active=total(f"{ENGINE}_active_blocks", PROCESS, "process"),
                    cached=total(f"{ENGINE}_cached_blocks", PROCESS, "process"),
                    all=total(f"{ENGINE}_total_blocks", PROCESS, "process"),
                ),
            ),
            Panel(
                "Hit rate of the engine",
                "percentunit",
                {"{{process}}": largest(f"{ENGINE}_hit_rate", PROCESS, "process")},
            ),
            Panel(
                "Requests that gave way",
                "reqps",
                {"{{process}}": rate(f"{ENGINE}_preemptions_total", PROCESS, "process")},
            ),
        ),
    },
)

ROUTERS = Board(
    "router",
    "dynamod: router and cache",
    {
        "Decisions": (
            Panel("Decisions per second", "reqps", {"{{model}}": rate(f"{ROUTER}_decisions_total", MODEL, "model")}),
            Panel(
                "Share of prompt blocks that the chosen worker had",
                "percentunit",
                {"{{model}}": ratio(f"{ROUTER}_overlap_blocks_total", f"{ROUTER}_prompt_blocks_total", MODEL, "model")},
                "It falls when prompts change early (dates, reordered tools) or when the cache is too small.",
            ),
            Panel(
                "Blocks that another worker had",
                "short",
                {"{{model}}": rate(f"{ROUTER}_regret_blocks_total", MODEL, "model")},
            ),
            Panel(
                "Time of a decision, mean",
                "ms",
                per(
                    "model",
                    scheduling=mean("dynamo_router_overhead_scheduling_ms", MODEL, "model"),
                    hashing=mean("dynamo_router_overhead_block_hashing_ms", MODEL, "model"),
                ),
            ),
        ),
        "State": (
            Panel("Blocks in the index", "short", {"{{model}}": total(f"{ROUTER}_indexed_blocks", MODEL, "model")}),
            Panel(
                "Load of workers, as the router assumes",
                "short",
                per(
                    "worker",
                    blocks=total(f"{FRONTEND}_worker_active_decode_blocks", MODEL, "worker"),
                    prompt_tokens=total(f"{FRONTEND}_worker_active_prefill_tokens", MODEL, "worker"),
                ),
            ),
        ),
    },
)

PREFILL = Board(
    "prefill",
    "dynamod: prefill and decode",
    {
        "Prompts": (
            Panel(
                "Prompts by place",
                "reqps",
                {
                    "prefill worker": rate(f"{FRONTEND}_model_remote_prefill_total", MODEL),
                    "failed": rate(f"{FRONTEND}_model_remote_prefill_failed_total", MODEL),
                    "answering worker: {{reason}}": rate(f"{FRONTEND}_model_local_prefill_total", MODEL, "reason"),
                },
            ),
            Panel(
                "Time of a request at prefill and decode workers, mean",
                "s",
                {"{{dynamo_component}}": mean("dynamo_component_request_duration_seconds", "", "dynamo_component")},
            ),
            Panel(
                "Open sessions, and sessions that wait",
                "short",
                per(
                    "process",
                    open=total(f"{HANDOFF}_sessions_open", PROCESS, "process"),
                    waiting=total(f"{HANDOFF}_sessions_waiting", PROCESS, "process"),
                ),
            ),
            Panel(
                "Ends of sessions",
                "short",
                per(
                    "process",
                    read=rate(f"{HANDOFF}_sessions_read_total", PROCESS, "process"),
                    expired=rate(f"{HANDOFF}_sessions_expired_total", PROCESS, "process"),
                    released=rate(f"{HANDOFF}_sessions_released_total", PROCESS, "process"),
                    failed=rate(f"{HANDOFF}_sessions_failed_total", PROCESS, "process"),
                ),
            ),
        ),
        "Transfer": (
            Panel("Bytes per second", "Bps", {"{{process}}": rate(f"{HANDOFF}_bytes_total", PROCESS, "process")}),
            Panel(
                "Time of a transfer, mean",
                "ms",
                {
                    "{{process}}": ratio(
                        f"{HANDOFF}_milliseconds_total", f"{HANDOFF}_transfers_total", PROCESS, "process"
                    )
                },
            ),
        ),
    },
)

PLANNERS = Board(
    "planner",
    "dynamod: planner",
    {
        "Replicas": (
            Panel(
                "Workers",
                "short",
                per(
                    "component",
                    wanted=total(f"{PLANNER}_target_replicas", "", "component"),
                    ready=total(f"{PLANNER}_num_replicas", "", "component"),
                    starting=total(f"{PLANNER}_num_starting_replicas", "", "component"),
                    failed=total(f"{PLANNER}_num_failed_replicas", "", "component"),
                ),
            ),
            Panel("Reason of the last tick", "short", {"{{component}} {{reason}}": f"{PLANNER}_load_scaling_decision"}),
            Panel(
                "Requests per second",
                "reqps",
                {"{{component}}": total(f"{PLANNER}_observed_requests_per_second", "", "component")},
            ),
            Panel(
                "Prompt tokens that wait, tokens in the cache",
                "short",
                per(
                    "component",
                    waiting=total(f"{PLANNER}_engine_queued_prefill_tokens", "", "component"),
                    in_the_cache=total(f"{PLANNER}_engine_inflight_decode_kv_tokens", "", "component"),
                ),
            ),
        ),
    },
)

BOARDS = (FLEET, MODELS, WORKERS, ROUTERS, PREFILL, PLANNERS)
