"""How often a model calls the right tool with the right argument: by its own choice, and where it has to.

`python tools/bench/forced_calls.py --url http://127.0.0.1:8080 --model sample`
"""

import argparse
import json
import urllib.request
from typing import Any

CITIES = ("Paris", "London", "Berlin", "Madrid", "Rome", "Tokyo", "Oslo", "Vienna", "Prague", "Lisbon")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}
CHOICES: dict[str, Any] = {"auto": "auto", "required": "required", "named": NAMED}


def ask(url: str, model: str, city: str, choice: Any) -> dict[str, Any]:
    """The choice of an answer at temperature 0."""
    question = {"role": "user", "content": f"What is the weather in {city}?"}
    body = {"model": model, "messages": [question], "tools": [WEATHER], "tool_choice": choice}
    data = json.dumps(body | {"temperature": 0, "max_tokens": 120}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        found: dict[str, Any] = json.load(answer)["choices"][0]
        return found


def right(choice: dict[str, Any], city: str) -> bool:
    """One call of the tool, with the city."""
    calls = choice["message"].get("tool_calls") or []
    try:
        return [(one["function"]["name"], json.loads(one["function"]["arguments"])) for one in calls] == [
            ("get_weather", {"city": city})
        ]
    except ValueError:
        return False


def main() -> None:
    """Prints how many of the cities each choice has right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--model", required=True)
    parser.add_argument("--choice", choices=CHOICES, action="append", help="only this one")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    for name in options.choice or CHOICES:
        choice = CHOICES[name]
        answers = [(city, ask(options.url, options.model, city, choice)) for city in CITIES]
        print(f"{name}: {sum(right(answer, city) for city, answer in answers)} of {len(CITIES)} right", flush=True)
        for city, answer in answers if options.verbose else ():
            message = answer["message"]
            calls = [one["function"] for one in message.get("tool_calls") or []]
            print(f"  {city}: {answer['finish_reason']} {message.get('content')!r} {calls}")


if __name__ == "__main__":
    main()
