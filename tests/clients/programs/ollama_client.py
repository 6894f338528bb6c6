"""Ollama's client: chats, prompts, tools, forms, models, vectors."""

import json
from typing import Any

import ollama
from flows import QUESTION, WEATHER, Order, Settings, main

ASKED: Any = [{"role": "user", "content": QUESTION}]


def get_weather(city: str) -> str:
    """Get the weather

    Args:
      city: a city
    """
    return WEATHER if city else ""


def client(settings: Settings) -> ollama.Client:
    return ollama.Client(host=settings.url, timeout=20)


def chat(settings: Settings) -> Any:
    asked: Any = {"model": f"{settings.model}:latest", "messages": ASKED, "options": {"num_predict": 20, "num_ctx": 99}}
    whole = client(settings).chat(**asked)
    pieces = [piece.message.content for piece in client(settings).chat(**asked, stream=True)]
    return [whole.message.content, "".join(one or "" for one in pieces), whole.done_reason]


def generate(settings: Settings) -> Any:
    asked: Any = {"model": settings.model, "prompt": QUESTION, "options": {"num_predict": 20}}
    whole = client(settings).generate(**asked)
    pieces = [piece.response for piece in client(settings).generate(**asked, stream=True)]
    return [whole.response, "".join(one or "" for one in pieces), whole.done_reason]


def form(settings: Settings) -> Any:
    found = client(settings).chat(settings.model, ASKED, format=Order.model_json_schema(), options={"num_predict": 500})
    return Order.model_validate_json(found.message.content or "").model_dump()


def tool_loop(settings: Settings) -> Any:
    """The first turn as a stream. Ollama's API cannot say that a tool must be called."""
    asked: Any = {"model": settings.model, "tools": [get_weather], "options": {"num_predict": 60}}
    pieces = list(client(settings).chat(**asked, messages=ASKED, stream=True))
    calls = [call for piece in pieces for call in piece.message.tool_calls or ()]
    turns = [*ASKED, {"role": "assistant", "tool_calls": calls}]
    turns += [{"role": "tool", "content": WEATHER, "tool_name": call.function.name} for call in calls]
    text = client(settings).chat(**asked, messages=turns).message.content if calls else ""
    return {"calls": [[call.function.name, dict(call.function.arguments)] for call in calls], "text": text}


def models(settings: Settings) -> Any:
    here = client(settings)
    shown = here.show(settings.model)
    names = [[model.model for model in found.models] for found in (here.list(), here.ps())]
    return [*names, "tools" in (shown.capabilities or ())]


def vectors(settings: Settings) -> Any:
    found = client(settings).embed(settings.model, ["one", "two"]).embeddings
    return [len(found), json.dumps(found[0]) != json.dumps(found[1])]


main(chat, generate, form, tool_loop, models, vectors)
