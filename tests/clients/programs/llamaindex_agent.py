"""LlamaIndex: a model behind OpenAI's API, its forms, and its calls of functions."""

import asyncio
from typing import Any

from flows import QUESTION, WEATHER, Order, Settings, main
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike


def get_weather(city: str) -> str:
    """Get the weather"""
    return WEATHER if city is not None else ""


TOOL = FunctionTool.from_defaults(get_weather)


def made(settings: Settings, **more: Any) -> OpenAILike:
    fields: Any = {"max_tokens": 1000, "timeout": 20, "max_retries": 0} | more
    kind: Any = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 2048}
    return OpenAILike(model=settings.model, api_base=settings.v1, api_key="unused", **kind, **fields)


def text(settings: Settings) -> Any:
    model = made(settings, max_tokens=20, additional_kwargs={"seed": 1})
    return [str(model.complete(QUESTION)), "".join(piece.delta or "" for piece in model.stream_complete(QUESTION))]


def structured(settings: Settings) -> Any:
    answer = made(settings).as_structured_llm(Order).complete(QUESTION)
    return answer.raw.model_dump()


def function_calling(settings: Settings) -> Any:
    """Told to call, it must; `streamed` are the calls of the last piece."""
    model = made(settings, additional_kwargs={"seed": 1})
    told: Any = {"tool_required": settings.choice == "required", "allow_parallel_tool_calls": False}
    whole = model.chat_with_tools([TOOL], user_msg=QUESTION, **told)
    pieces = list(model.stream_chat_with_tools([TOOL], user_msg=QUESTION, **told))
    calls = [
        [[call.tool_name, call.tool_kwargs] for call in model.get_tool_calls_from_response(answer)]
        for answer in (whole, pieces[-1])
    ]
    assert calls[0] == calls[1]
    return calls[0]


def agent(settings: Settings) -> Any:
    """Its agent tells the model to call on the first turn, where it is told so."""

    async def run() -> Any:
        told = "get_weather" if settings.choice == "required" else None
        agent = FunctionAgent(tools=[TOOL], llm=made(settings), initial_tool_choice=told)
        answer = await agent.run(QUESTION, max_iterations=4)
        calls = [[call.tool_name, call.tool_kwargs] for call in answer.tool_calls]
        return {"calls": calls, "text": answer.response.content}

    return asyncio.run(run())


main(text, structured, function_calling, agent)
