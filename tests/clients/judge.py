"""What is right about the answers of clients: their form, and words that the sample model was taught."""

from typing import Any

import pytest

CALL = ["get_weather", {"city": "Paris"}]
ANSWER = "It is sunny in Paris."
UNKNOWN = "I do not know the weather."


def value(found: dict[str, Any], flow: str) -> Any:
    """What came of a flow; its error fails the test."""
    assert flow in found, f"{flow} has not been run: {[*found]}"
    if "error" in found[flow]:
        pytest.fail(f"{flow}: {found[flow]['error']}", pytrace=False)
    return found[flow]["value"]


def order(found: Any) -> None:
    """An order, and nothing else."""
    assert found.keys() == {"customer", "paid", "parcel", "gift"}
    assert found["customer"] in ("Ann", "Bo")
    assert isinstance(found["paid"], bool)
    for parcel in (found["parcel"], found["gift"] or found["parcel"]):
        assert parcel.keys() == {"size", "fragile"}
        assert parcel["size"] in ("small", "large")
        assert isinstance(parcel["fragile"], bool)


def calls(found: Any, choice: str) -> None:
    """Calls of the tool: one that was told to fits its schema, the sample model's own is the right one."""
    if choice == "auto":
        assert found == [CALL]
        return
    assert found
    for name, arguments in found:
        assert name == "get_weather"
        assert arguments.keys() == {"city"}
        assert isinstance(arguments["city"], str)


def loop(found: Any, choice: str) -> None:
    """Calls, and then the answer that ends the loop."""
    calls(found["calls"], choice)
    assert found["text"] == ANSWER if choice == "auto" else found["text"]


def loop_to_order(found: Any, choice: str) -> None:
    """Calls, and then an order."""
    calls(found["calls"], choice)
    order(found["order"])
