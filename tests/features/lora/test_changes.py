"""What is known of adapters: everybody comes to the same, whatever the order in which records come."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dynamod.features.lora.changes import UNLOADED, AdapterChange, AdapterChanges, AdapterRecord
from dynamod.message.discovery import Adapter

CHANGE = st.builds(
    AdapterChange,
    st.sampled_from(["m", "n"]),
    st.builds(Adapter, st.sampled_from(["x", "y", "z"]), st.sampled_from(["/1", "/2"]), st.sampled_from(["", "a"])),
    st.integers(0, 3).map(float),
    st.booleans(),
)
RECORDS = st.lists(st.lists(CHANGE, max_size=5).map(lambda found: AdapterRecord(tuple(found))), max_size=5)


def knowing(*records: AdapterRecord) -> AdapterChanges:
    made = AdapterChanges()
    for record in records:
        made.record("k", msgspec.json.encode(record))
    return made


@given(RECORDS, st.randoms())
def test_the_order_of_records_does_not_matter(records: list[AdapterRecord], random: object) -> None:
    found = knowing(*records).all()
    random.shuffle(records)  # type: ignore[attr-defined]
    other = knowing(*records, *records)
    assert other.all() == found
    assert knowing(found).all() == found
    told: list[None] = []
    other.on_change(lambda: told.append(None))
    other.merge(found)
    assert told == [], "who knows it says nothing"
    newest = {(one.model, one.adapter.name): 0.0 for record in records for one in record.changes}
    for record in records:
        for one in record.changes:
            newest[one.model, one.adapter.name] = max(newest[one.model, one.adapter.name], one.at)
    assert {(one.model, one.adapter.name): one.at for one in found.changes} == newest


@given(RECORDS, CHANGE)
def test_the_next_change_counts(records: list[AdapterRecord], one: AdapterChange) -> None:
    changes = knowing(*records)
    following = changes.next(one.model, one.adapter, one.at, loaded=one.loaded)
    changes.merge(AdapterRecord((following,)))
    assert following in changes.of(one.model)
    assert (following in changes.loaded()) == one.loaded


def test_what_is_gone_or_broken_takes_nothing_back() -> None:
    change = AdapterChange("m", Adapter("x", "/x"), 1.0)
    changes = knowing(AdapterRecord((change,)))
    changes.record("k", None)
    changes.record("k", b"{")
    assert changes.all().changes == (change,)


def test_old_unloadings_are_forgotten_by_all_in_the_same_way() -> None:
    found = [AdapterChange("m", Adapter(f"x{n}", "/x"), float(n), loaded=n == 0) for n in range(UNLOADED + 5)]
    record = AdapterRecord(tuple(found))
    changes = knowing(record)
    kept = {one.adapter.name for one in changes.of("m")}
    assert kept == {"x0", *(f"x{n}" for n in range(5, UNLOADED + 5))}
    told: list[None] = []
    changes.on_change(lambda: told.append(None))
    changes.merge(record)
    assert told == []
