"""LangChain: tools, forms, and an agent, by chat completions and by responses."""

from typing import Any

from flows import QUESTION, WEATHER, Order, Settings, main
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain.agents.structured_output import ProviderStrategy
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool
def get_weather(city: str) -> str:
    """Get the weather"""
    return WEATHER if isinstance(city, str) else ""


@wrap_model_call
def call_first(request: Any, handler: Any) -> Any:
    """The first turn has to call; later ones may."""
    called = any(isinstance(message, AIMessage) for message in request.messages)
    return handler(request.override(tool_choice="auto" if called else "required"))


def chat(settings: Settings, **more: Any) -> ChatOpenAI:
    fields: Any = {"max_tokens": 200, "timeout": 20, "max_retries": 0} | more
    return ChatOpenAI(base_url=settings.v1, api_key="unused", model=settings.model, **fields)


def text(settings: Settings) -> Any:
    model = chat(settings, max_tokens=20, seed=1)
    return [model.invoke(QUESTION).text, "".join(piece.text for piece in model.stream(QUESTION))]


def bound_tools(settings: Settings) -> Any:
    """The calls of an answer, and the same streamed."""
    model = chat(settings, seed=1).bind_tools([get_weather], tool_choice=settings.choice, parallel_tool_calls=False)
    whole, streamed = model.invoke(QUESTION), None
    for piece in model.stream(QUESTION):
        streamed = piece if streamed is None else streamed + piece
    assert streamed is not None
    calls = [[[call["name"], call["args"]] for call in answer.tool_calls] for answer in (whole, streamed)]
    assert calls[0] == calls[1]
    return calls[0]


def structured_json_schema(settings: Settings) -> Any:
    return structured(settings, "json_schema")


def structured_function_calling(settings: Settings) -> Any:
    return structured(settings, "function_calling")


def structured(settings: Settings, method: Any) -> Any:
    order = chat(settings, max_tokens=1000).with_structured_output(Order, method=method).invoke(QUESTION)
    return order.model_dump() if isinstance(order, Order) else order


def json_mode(settings: Settings) -> Any:
    """Any object; which members it has is the model's matter."""
    return chat(settings, max_tokens=1000).with_structured_output(None, method="json_mode").invoke(QUESTION)


def responses_tools(settings: Settings) -> Any:
    model = chat(settings, use_responses_api=True).bind_tools(
        [get_weather], tool_choice=settings.choice, parallel_tool_calls=False
    )
    return [[call["name"], call["args"]] for call in model.invoke(QUESTION).tool_calls]


def responses_agent(settings: Settings) -> Any:
    return agent_loop(settings, use_responses_api=True)


def agent(settings: Settings) -> Any:
    return agent_loop(settings)


def agent_output(settings: Settings) -> Any:
    """A tool, then an object: both are asked for in each turn."""
    told: Any = [call_first] if settings.choice == "required" else []
    form: Any = ProviderStrategy(Order)
    made = create_agent(chat(settings), tools=[get_weather], middleware=told, response_format=form)
    answer = made.invoke({"messages": [{"role": "user", "content": QUESTION}]}, {"recursion_limit": 8})
    calls = [[call["name"], call["args"]] for turn in answer["messages"] for call in getattr(turn, "tool_calls", ())]
    return {"calls": calls, "order": answer["structured_response"].model_dump()}


def agent_loop(settings: Settings, **more: Any) -> Any:
    told: Any = [call_first] if settings.choice == "required" else []
    made = create_agent(chat(settings, **more), tools=[get_weather], middleware=told)
    turns = made.invoke({"messages": [{"role": "user", "content": QUESTION}]}, {"recursion_limit": 8})["messages"]
    calls = [[call["name"], call["args"]] for turn in turns for call in getattr(turn, "tool_calls", ())]
    return {"calls": calls, "text": turns[-1].text}


main(
    *(text, bound_tools, structured_json_schema, structured_function_calling, json_mode),
    *(responses_tools, responses_agent, agent, agent_output),
)
