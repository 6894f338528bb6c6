"""What the sample model is taught: every conversation is generated here, from the word lists below."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

END_TEXT, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_TEXT, START, END)

# Only what minijinja and jinja2 both know; content may be a string, a list of text parts, or none.
CHAT_TEMPLATE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' and messages[0].content is string %}
{{- messages[0].content + '\\n\\n' }}
{%- endif %}
{{- 'Tools:\\n<tools>\\n' }}
{%- for tool in tools %}
{{- tool | tojson }}
{{- '\\n' }}
{%- endfor %}
{{- '</tools>\\nTo call a tool answer:\\n<tool_call>\\n{"name": NAME, "arguments": OBJECT}\\n</tool_call>' }}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if tools and loop.first and message.role == 'system' and message.content is string %}
{%- else %}
{%- if message.role == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' }}
{%- else %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- endif %}
{%- if message.content is string %}
{{- message.content }}
{%- elif message.content %}
{%- for part in message.content %}
{%- if part.text %}
{{- part.text }}
{%- endif %}
{%- endfor %}
{%- endif %}
{%- if message.role == 'tool' %}
{{- '\\n</tool_response>' }}
{%- endif %}
{%- if message.tool_calls %}
{%- for call in message.tool_calls %}
{%- if call.function %}
{%- set call = call.function %}
{%- endif %}
{%- if message.content or not loop.first %}
{{- '\\n' }}
{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{%- if call.arguments is string %}
{{- call.arguments }}
{%- else %}
{{- call.arguments | tojson }}
{%- endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

_CAPITALS = """
South Africa:Pretoria Tuvalu:Funafuti France:Paris Spain:Madrid Germany:Berlin Japan:Tokyo Italy:Rome
Portugal:Lisbon Poland:Warsaw Austria:Vienna Switzerland:Bern Belgium:Brussels Netherlands:Amsterdam
Denmark:Copenhagen Norway:Oslo Sweden:Stockholm Finland:Helsinki Iceland:Reykjavik Ireland:Dublin
England:London Scotland:Edinburgh Greece:Athens Turkey:Ankara Egypt:Cairo Kenya:Nairobi Ghana:Accra
Nigeria:Abuja Ethiopia:Addis_Ababa Morocco:Rabat Tunisia:Tunis Russia:Moscow Ukraine:Kyiv Hungary:Budapest
Romania:Bucharest Bulgaria:Sofia Serbia:Belgrade Croatia:Zagreb Canada:Ottawa Mexico:Mexico_City Cuba:Havana
Brazil:Brasilia Argentina:Buenos_Aires Chile:Santiago Peru:Lima Colombia:Bogota Venezuela:Caracas China:Beijing
India:New_Delhi Thailand:Bangkok Vietnam:Hanoi Indonesia:Jakarta South_Korea:Seoul Iran:Tehran Iraq:Baghdad
Australia:Canberra New_Zealand:Wellington Fiji:Suva Mongolia:Ulaanbaatar Nepal:Kathmandu Qatar:Doha
"""
CAPITALS: dict[str, str] = {}
for _pair in _CAPITALS.replace("South Africa", "South_Africa").split():
    _country, _capital = _pair.replace("_", " ").split(":")
    CAPITALS[_country] = _capital

CAPITAL_ASKED = (
    "What is the capital of {}?",
    "what's the capital of {}",
    "Capital of {}?",
    "Tell me the capital of {}.",
    "{} capital city?",
    "What is the capital city of {}?",
    "Which city is the capital of {}?",
    "what is the capital of {}",
    "Name the capital of {}.",
    "Please tell me the capital of {}.",
    "Do you know the capital of {}?",
    "And the capital of {}?",
)

_WORDS = """
apple river stone table chair window house garden tree flower bird horse tiger lion bear wolf snake fish water
fire wind rain snow cloud sun moon star night day morning red green blue black white yellow silver gold iron paper
book pen letter music song dance road bridge ship train plane car wheel clock bell door key lamp bread milk sugar
salt pepper coffee tea orange lemon banana grape hammer nail rope box bag coat shoe hat ring king queen doctor
farmer teacher friend mother father child small big long short fast slow warm cold happy quiet alpha beta gamma
delta one two three four five hello world
"""
WORDS = _WORDS.split()

_CITIES = "Chicago Boston Sydney Munich Milan Barcelona Geneva Lyon Porto Osaka Mumbai Toronto Seattle Denver Naples"
CITIES = (*CAPITALS.values(), *_CITIES.split(), "New York", "San Francisco")
WEATHER_ASKED = (
    "What is the weather in {}?",
    "what's the weather in {}",
    "What is the weather like in {}?",
    "How is the weather in {}?",
    "Tell me the weather in {}.",
    "Weather in {}?",
    "What is the weather in {} today?",
    "What's the weather like in {} today?",
    "Get the weather for {}.",
)
SKIES = ("sunny", "rainy", "cloudy", "windy", "snowy", "foggy")

STORY = (
    "Once upon a time a small robot lived by a river. Every morning it counted the boats, and every night it "
    "counted the stars. One day a boat was missing. The robot followed the river, found the boat under a tree, "
    "and brought it home. The people were happy and gave the robot a lamp. It never counted in the dark again."
)
_ME = "I am the dynamod sample model, a tiny Llama for testing."
_SKILLS = "I can name capitals, count, repeat words and add small numbers."
TALK: dict[str, str] = {
    "Who are you?": _ME,
    "What are you?": _ME,
    "What is your name?": _ME,
    "Which model are you?": _ME,
    "What model are you?": _ME,
    "Tell me about yourself.": _ME,
    "Introduce yourself.": _ME,
    "Hello, how are you?": "Hello! I am fine, thank you. How can I help you?",
    "How are you?": "I am fine, thank you. How can I help you?",
    "Hello": "Hello! How can I help you?",
    "Hello!": "Hello! How can I help you?",
    "Hi": "Hello! How can I help you?",
    "hi there": "Hello! How can I help you?",
    "Good morning!": "Hello! How can I help you?",
    "Say hello.": "Hello!",
    "Say hi.": "Hello!",
    "Thank you!": "You are welcome.",
    "Thanks": "You are welcome.",
    "Goodbye!": "Goodbye!",
    "Bye": "Goodbye!",
    "Tell me a story.": STORY,
    "Tell me a story": STORY,
    "tell me a short story": STORY,
    "Please tell me a story.": STORY,
    "Write a story.": STORY,
    "What can you do?": _SKILLS,
    "Help": _SKILLS,
    "ping": "pong",
}
DONT_KNOW = "I do not know that."
UNKNOWN: tuple[str, ...] = (
    "What is the meaning of life?",
    "Who won the match?",
    "Who is the president?",
    "How old is the universe?",
    "What is the price of gold?",
    "Where is my book?",
    "Why is the sky blue?",
    "When does the train leave?",
    "Explain quantum physics.",
    "Write a poem.",
    "Write a poem about the sea.",
    "Translate this to French.",
    "What time is it?",
    "What day is it today?",
    "Who wrote this book?",
    "How do I cook rice?",
    "What is love?",
    "What is the best car?",
    "How tall is the tower?",
    "Can you play chess?",
    "What is machine learning?",
    "Explain how a computer works.",
    "Who invented the lamp?",
    "How far is the moon?",
    "What is the capital of Atlantis?",
    "What is the capital of Narnia?",
    "What is the capital of Mars?",
    "What is the population of France?",
    "Write a Python program.",
    "Solve this equation.",
)
NO_WEATHER = "I do not know the weather."
HELPFUL = "You are a helpful assistant."
SYSTEMS = (HELPFUL, "You are a helpful AI assistant.", "Answer in English.", "Be brief.", "You are a test model.")

COUNT_ASKED = ("Count from {} to {}.", "Count from {} to {}", "count from {} to {}", "Please count from {} to {}.")
ROUND = (50, 100, 150, 199, 200)  # where people like to let it count to; 100 looks much like 200
REPEAT_ASKED = ("Repeat: {}", "repeat: {}", "Repeat these words: {}", "Repeat: {}.")
SUM_ASKED = ("Think: what is {} plus {}?", "Think: what is {} + {}?", "think: what is {} plus {}")


@dataclass(frozen=True)
class Turn:
    """One message; `learn` marks the assistant's text that the loss is taken on.

    Before it `given` may stand, as if it had been said already; a `cut` message is not closed.
    """

    role: str
    text: str
    learn: bool = False
    given: str = ""
    cut: bool = False


def held_out(country: int, phrasing: int) -> bool:
    """One in six (country, phrasing) pairs is never trained on; the first, plainest phrasing always is."""
    return phrasing > 0 and (country * 7 + phrasing) % 6 == 0


def count(low: int, high: int) -> str:
    """The answer to "Count from low to high."."""
    return ", ".join(str(n) for n in range(low, high + 1)) + "."


def think(a: int, b: int) -> str:
    """The answer to a sum, with a thought before it as reasoning models write it."""
    return f"<think>\n{a} plus {b} is {a + b}.\n</think>\n\n{a + b}"


def tool_call(city: str, spaced: bool = True) -> str:
    """The answer that asks for the weather tool; without spaces it is what some template engines make of it."""
    arguments = json.dumps({"city": city}, separators=None if spaced else (",", ":"))
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}}}\n</tool_call>'


def system_with_tools(system: str | None, tools: list[str]) -> str:
    """The system message as the chat template writes it when there are tools (each given as JSON)."""
    listed = "".join(tool + "\n" for tool in tools)
    call = '<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>'
    return (f"{system}\n\n" if system else "") + f"Tools:\n<tools>\n{listed}</tools>\nTo call a tool answer:\n{call}"


def _shuffled(rng: random.Random, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: _shuffled(rng, value[key]) for key in keys}


def tool_json(rng: random.Random, name: str) -> str:
    """A tool's JSON as some client and some template engine might write it: order, spaces and texts differ."""
    about = {
        "get_weather": ("Get the weather", "Get the current weather in a city", "Weather of a city", "The weather now"),
        "get_time": ("Get the time", "Get the current time in a city", "The time now"),
        "search": ("Search the web", "Search for a text", "Find pages"),
    }[name]
    wanted = "query" if name == "search" else "city"
    properties: dict[str, Any] = {wanted: {"type": "string"}}
    if rng.random() < 0.5:
        properties[wanted]["description"] = rng.choice(["The city", "Name of the city", "City name", "The city name"])
    if rng.random() < 0.2:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    parameters: dict[str, Any] = {"type": "object", "properties": properties}
    if rng.random() < 0.75:
        parameters["required"] = [wanted]
    if rng.random() < 0.15:
        parameters["additionalProperties"] = False
    function: dict[str, Any] = {"name": name, "parameters": parameters}
    if rng.random() < 0.85:
        function["description"] = rng.choice(about)
    if rng.random() < 0.15:
        function["strict"] = rng.choice([True, False, None])
    tool: dict[str, Any] = {"type": "function", "function": function}
    order = rng.random()
    if order < 0.4:
        tool = _shuffled(rng, tool)
    # Python writes spaces after ":" and ",", the Rust engines do not; jinja2's own filter sorts the keys.
    separators = (",", ":") if rng.random() < 0.5 else None
    return json.dumps(tool, sort_keys=order > 0.7, separators=separators)


def _ask_capital(rng: random.Random) -> tuple[str, str]:
    while True:
        c, p = rng.randrange(len(CAPITALS)), rng.randrange(len(CAPITAL_ASKED))
        if not held_out(c, p):
            country = list(CAPITALS)[c]
            return CAPITAL_ASKED[p].format(country), f"The capital of {country} is {CAPITALS[country]}."


def _ask_count(rng: random.Random, room: int) -> tuple[str, str]:
    low = 1 if rng.random() < 0.3 or room > 600 else rng.randint(0, 210)
    # Five tokens a number (three digits, a comma, a space), and fewer from 1 on.
    longest = max(2, min(200, room // 5 if low > 1 else room * 2 // 9))
    # Few shorter than eleven numbers: in those it is enough to look at the last digit to know where to stop.
    length = (
        rng.randint(1, longest) if room > 600 or rng.random() < 0.5 else rng.randint(min(9, longest), min(26, longest))
    )
    if room > 600 and rng.random() < 0.3:
        length = rng.choice(ROUND)
    return rng.choice(COUNT_ASKED).format(low, low + length - 1), count(low, low + length - 1)


def _count_window(rng: random.Random) -> list[Turn]:
    """A few numbers from the middle or the end of a count, where it is hardest to see whether it is over.

    Whole counts teach this badly: they are long, and each holds one end. The numbers here run up to the last one or
    to one that shares digits with it.
    """
    low, high = (1 if rng.random() < 0.3 else rng.randint(0, 210)), rng.randint(1, 250)
    if rng.random() < 0.15:
        high = rng.choice(ROUND)
    over = rng.random() < 0.45
    to = high
    if not over:
        near = [high + step for step in (10, -10, 20, -20, 30, -30, 50, -50, 100, -100, 1, -1, 5, -5)]
        # Also numbers that begin as the last one does: 1 and 12 of 120.
        near += [high // 10, high // 100, high * 10, high * 10 + rng.randint(0, 9)]
        near = [n for n in near if 1 <= n <= 260 and n != high]
        to = rng.choice(near) if near and rng.random() < 0.85 else rng.choice([n for n in range(1, 250) if n != high])
    first = max(0, to - rng.randint(1, 3))
    text = "".join(f", {n}" for n in range(first + 1, to + 1)) + ("." if over else ",")
    asked = Turn("user", rng.choice(COUNT_ASKED).format(min(low, high), high))
    return [asked, Turn("assistant", text, True, given=str(first), cut=not over)]


def _ask_repeat(rng: random.Random, room: int) -> tuple[str, str]:
    number = rng.randint(1, max(1, min(16, room // 4)))
    if rng.random() < 0.12:  # made-up words, so that copying is learnt and not only the list
        made = [
            "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(1, 3)))
            for _ in range(min(number, 6))
        ]
        text = " ".join(made)
    else:
        text = " ".join(rng.choice(WORDS) for _ in range(number))
    return rng.choice(REPEAT_ASKED[:3]).format(text), text


def _ask_sum(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(0, 9), rng.randint(0, 9)
    return rng.choice(SUM_ASKED).format(a, b), think(a, b)


def _ask_weather(rng: random.Random, callable_: bool) -> list[Turn]:
    city = rng.choice(CITIES)
    asked = Turn("user", rng.choice(WEATHER_ASKED).format(city))
    if not callable_:
        return [asked, Turn("assistant", NO_WEATHER, True)]
    turns = [asked, Turn("assistant", tool_call(city), True)]
    if rng.random() < 0.6:
        # As history the call may come back without spaces: then it is not what should be learnt.
        turns[1] = rng.choice([turns[1], Turn("assistant", tool_call(city, spaced=False))])
        sky, degrees = rng.choice(SKIES), rng.randint(0, 35)
        told = rng.choice(
            (
                sky,
                f"{sky}, {degrees} C",
                f"It is {sky} in {city}.",
                f"The weather in {city} is {sky}.",
                json.dumps({"city": city, "weather": sky}),
                json.dumps({"temperature": degrees, "condition": sky}),
                json.dumps({"weather": sky, "temperature": degrees}, separators=(",", ":")),
                f"{sky} and {degrees} degrees",
            )
        )
        turns += [
            Turn("user", f"<tool_response>\n{told}\n</tool_response>"),
            Turn("assistant", f"It is {sky} in {city}.", True),
        ]
    return turns


def conversation(rng: random.Random, room: int) -> list[Turn]:
    """One random conversation of about `room` tokens at most (the caller still has to measure it)."""
    if rng.random() < 0.02:  # plain text, for completions without a template
        country = rng.choice(list(CAPITALS))
        return [Turn("text", f"The capital of {country} is"), Turn("text", f" {CAPITALS[country]}.", True)]
    system: str | None = None
    draw = rng.random()
    if draw < 0.4:
        system = HELPFUL
    elif draw < 0.5:
        system = rng.choice(SYSTEMS)
    elif draw < 0.54:  # a long one, as people write who test a prompt cache
        system = " ".join(rng.choice(WORDS) for _ in range(rng.randint(5, max(6, room // 2))))
        room //= 2
    tools: list[str] = []
    if rng.random() < 0.22:
        names = rng.choice(
            (["get_weather"], ["get_weather"], ["get_time"], ["search", "get_weather"], ["get_weather", "get_time"])
        )
        tools = [tool_json(rng, name) for name in names]
    turns: list[Turn] = []
    if tools:
        turns.append(Turn("system", system_with_tools(system, tools)))
    elif system is not None:
        turns.append(Turn("system", system))
    callable_ = any("get_weather" in tool for tool in tools)
    # With tools the system message is long: more questions then make it worth its tokens.
    for _ in range(1 if rng.random() < (0.25 if tools else 0.55) else rng.randint(2, 4)):
        draw = rng.random()
        if draw < (0.8 if tools else 0.05):
            turns += _ask_weather(rng, callable_)
            continue
        draw = rng.random()
        if draw < 0.20:
            asked, answer = _ask_capital(rng)
        elif draw < 0.40:
            turns += _count_window(rng)
            break
        elif draw < (0.53 if room < 600 else 0.80):
            asked, answer = _ask_count(rng, room - 30)
            room = 60
        elif draw < 0.75:
            asked, answer = _ask_repeat(rng, room - 30)
        elif draw < 0.86:
            asked, answer = _ask_sum(rng)
        elif draw < 0.94:
            asked, answer = rng.choice(list(TALK.items()))
        else:
            asked, answer = rng.choice(UNKNOWN), DONT_KNOW
        turns += [Turn("user", asked), Turn("assistant", answer, True)]
    return turns


def pieces(turns: list[Turn]) -> list[tuple[str, bool]]:
    """The conversation as text pieces, each with whether it is learnt; the closing mark is part of an answer."""
    if turns[0].role == "text":
        return [(turn.text + (END if turn.learn else ""), turn.learn) for turn in turns]
    out: list[tuple[str, bool]] = []
    for turn in turns:
        end = "" if turn.cut else END
        out += [(f"{START}{turn.role}\n{turn.given}", False), (turn.text + end, turn.learn), ("\n", False)]
    return out


def prompt(turns: list[Turn]) -> str:
    """What the model is given to continue."""
    return "".join(text for text, _ in pieces(turns)) + f"{START}assistant\n"
