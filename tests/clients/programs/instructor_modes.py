"""instructor: an object of a class, in each of its modes that a server can hold a model to."""

from typing import Any

import instructor
import openai
from flows import QUESTION, Order, Settings, main


def made(settings: Settings, mode: instructor.Mode) -> Any:
    sdk = openai.OpenAI(base_url=settings.v1, api_key="unused", timeout=20, max_retries=0)
    return instructor.from_openai(sdk, mode=mode)


def asked(settings: Settings) -> Any:
    return {"model": settings.model, "messages": [{"role": "user", "content": QUESTION}], "max_retries": 0}


def order(settings: Settings, mode: instructor.Mode) -> Any:
    return made(settings, mode).chat.completions.create(**asked(settings), response_model=Order).model_dump()


def tools(settings: Settings) -> Any:
    return order(settings, instructor.Mode.TOOLS)


def json_schema(settings: Settings) -> Any:
    return order(settings, instructor.Mode.JSON_SCHEMA)


def partial(settings: Settings) -> Any:
    """The object as it grows."""
    stages = made(settings, instructor.Mode.TOOLS).chat.completions.create_partial(
        **asked(settings), response_model=Order
    )
    return [stage.model_dump() for stage in stages][-1]


main(tools, json_schema, partial)
