"""Requests without a token by stage and phase, and why they wait for a worker."""

import asyncio
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

from dynamod.actor import System
from dynamod.ingress.dispatcher import Dispatcher, ModelCounts, ModelServed
from dynamod.ingress.router_metrics import stage_rows
from dynamod.ingress.waits import waits
from dynamod.message.discovery import ModelCard
from dynamod.message.waits import Waits
from dynamod.router.placement import DispatcherClient
from dynamod.router.router import Prompt, RouterSettings
from dynamod.runtime.statistics import families_of

from .test_router_metrics import View


async def test_where_requests_wait_and_why() -> None:
    view: Any = View()
    view.all_instances = lambda: view.instances
    transport: Any = SimpleNamespace(open=lambda *_: SimpleNamespace(cancel=lambda: None))
    counts: defaultdict[str, ModelCounts] = defaultdict(ModelCounts)
    settings = RouterSettings(mode="kv", busy_prefill=20, queue_size=8)
    card = ModelCard(name="Llama", kind="tokens", kv_cache_block_size=4)
    async with System(seed=1) as system:
        dispatcher = Dispatcher(view, transport, settings, counts)
        ref = system.start("dispatcher", lambda: dispatcher)
        client = DispatcherClient(ref, view)
        ref.send_nowait(ModelServed(card))
        counts["Llama"].preprocess.enter()
        for number in range(2):
            await client.acquire(card, Prompt(f"r{number}", 40))
        late = asyncio.ensure_future(client.acquire(card, Prompt("late", 40)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not late.done()
        counts["Llama"].route.enter()
        found = [*waits(dispatcher, {"Llama": 7})]
        assert found == [
            Waits("Llama", "preprocess", "", 1),
            Waits("Llama", "route", "aggregated", 1, "all 2 workers are busy: 40 prompt tokens to compute"),
            Waits("Llama", "dispatch", "aggregated", 7),
        ]
        (family,) = families_of("agg/ingress.0", stage_rows(found, "dynamo_frontend"))
        shown = {(one.labels["stage"], one.labels["phase"]): one.value for one in family.samples}
        assert shown == {("preprocess", ""): 1, ("route", "aggregated"): 1, ("dispatch", "aggregated"): 7}
        view.instances = view.instances[:1]
        assert [*waits(dispatcher, {})][1].why == "busy: 40 prompt tokens to compute, at the only worker"
        view.instances = []
        assert [*waits(dispatcher, {})][1].why == "no worker is ready"
        assert [*waits(dispatcher, {}, lambda model: model == "Llama")][1].why == "a worker is being started"
        late.cancel()
