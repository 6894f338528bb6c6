"""What metrics show of the routers: valid names, honest numbers."""

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from dynamod.actor import System
from dynamod.discovery.view import Serving
from dynamod.ingress.dispatcher import Dispatcher, ModelCounts, ModelGone, ModelServed, RouterRows
from dynamod.message.discovery import Instance, ModelCard
from dynamod.router.placement import DispatcherClient
from dynamod.router.router import Prompt, RouterSettings
from dynamod.runtime.statistics import families_of


class View:
    """Two workers, one of whose process is not known."""

    def __init__(self) -> None:
        self.slow: dict[int, str] = {}
        self.instances = [
            Instance("d", "W", "generate", number, {}, process=process)
            for number, process in ((10, "agg/Worker.0"), (11, ""))
        ]

    def serving(self, _model: str, _like: Any = None) -> list[Instance]:
        return self.instances

    def served(self, _model: str, _like: Any = None, _pool: Any = None) -> Serving:
        found = Serving()
        for instance in self.instances:
            found.put(f"{instance.instance_id:x}", instance)
        return found

    all_instances = serving

    def card(self, model: str) -> ModelCard:
        return ModelCard(model, migration_limit=5)

    def on_change(self, _call: Any) -> None:
        pass


async def test_a_model_and_its_workers() -> None:
    view: Any = View()
    view.all_instances = lambda: view.instances
    transport: Any = SimpleNamespace(open=lambda *_: SimpleNamespace(cancel=lambda: None))
    counts: defaultdict[str, ModelCounts] = defaultdict(ModelCounts)
    settings = RouterSettings(mode="kv", shadow_mode="random")
    card = ModelCard(name="Llama", kind="tokens", kv_cache_block_size=4)
    async with System(seed=1) as system:
        ref = system.start("dispatcher", lambda: Dispatcher(view, transport, settings, counts))
        client = DispatcherClient(ref, view)
        ref.send_nowait(ModelServed(card))
        for number in range(3):
            await client.acquire(card, Prompt(f"r{number}", 10, (1, 2)))
        counts["Llama"].overhead.block_hashing.observe(0.3)
        migrations = counts["Llama"].migrations
        for ongoing in (True, True, False):
            migrations.broke(ongoing)
        migrations.settled(0.004, True)
        migrations.settled(1.5, False)
        rows = await ref.ask(RouterRows("dynamo_frontend"), timeout=1)
        ref.send_nowait(ModelGone("Llama"))
        assert await ref.ask(RouterRows("p"), timeout=1) == []
    found, helps = {}, {}
    for family in families_of("agg/ingress.0", rows):
        helps[family.name] = family.documentation
        assert family.type != "unknown"
        assert family.documentation
        for sample in family.samples:
            assert (sample.labels["model"], sample.labels["process"]) == ("llama", "agg/ingress.0")
            label = next(
                (sample.labels[key] for key in ("worker", "migration_type", "outcome") if key in sample.labels), ""
            )
            found[sample.name, label or sample.labels.get("le", "")] = sample.value
    assert found["dynamod_router_decisions_total", ""] == 3
    assert found["dynamod_router_prompt_blocks_total", ""] == 6
    assert 0 <= found["dynamod_router_overlap_blocks_total", ""] <= 6
    assert found["dynamod_router_active_requests", ""] == 3
    prefill = {name: found["dynamo_frontend_worker_active_prefill_tokens", name] for name in ("agg/Worker.0", "b")}
    assert sum(prefill.values()) > 0
    assert sum(found["dynamo_frontend_worker_active_decode_blocks", name] for name in prefill) >= 5
    assert found["dynamo_frontend_router_queue_pending_requests", ""] == 0
    assert found["dynamo_router_overhead_scheduling_ms_count", ""] == 3
    assert found["dynamo_router_overhead_scheduling_ms_sum", ""] > 0
    assert found["dynamo_router_overhead_block_hashing_ms_bucket", "0.25"] == 0
    assert found["dynamo_router_overhead_block_hashing_ms_bucket", "0.5"] == 1
    assert found["dynamo_frontend_model_migration_total", "ongoing_request"] == 2
    assert found["dynamo_frontend_model_migration_total", "new_request"] == 1
    assert found["dynamo_frontend_model_migration_duration_seconds_sum", "success"] == 0.004
    assert found["dynamo_frontend_model_migration_duration_seconds_count", "failure"] == 1
    assert found["dynamo_frontend_model_migration_limit", ""] == 5
