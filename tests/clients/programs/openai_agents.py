"""OpenAI's SDK for agents: tools, their loop, and output of a type, by responses and by chat completions."""

import asyncio
import json
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from agents import set_tracing_disabled as without_tracing
from flows import QUESTION, WEATHER, Order, Settings, main
from openai import AsyncOpenAI


@function_tool
def get_weather(city: str) -> str:
    """Get the weather"""
    return WEATHER if city is not None else ""


def ask(settings: Settings, kind: Any, streamed: bool = False, **fields: Any) -> Any:
    """Runs an agent. Told to call, the model is told so for the first turn only: the SDK sees to that."""

    async def run() -> Any:
        async with AsyncOpenAI(base_url=settings.v1, api_key="unused", timeout=20, max_retries=0) as client:
            agent: Any = Agent(name="agent", model=kind(model=settings.model, openai_client=client), **fields)
            if not streamed:
                return await Runner.run(agent, QUESTION, max_turns=4)
            result = Runner.run_streamed(agent, QUESTION, max_turns=4)
            async for _ in result.stream_events():
                pass
            return result

    return asyncio.run(run())


def order(settings: Settings, kind: Any) -> Any:
    return ask(settings, kind, output_type=Order).final_output.model_dump()


def loop(settings: Settings, kind: Any, streamed: bool = False) -> Any:
    """Tools, and an object in the end: noise has an end with it, too."""
    told = ModelSettings(tool_choice=settings.choice, max_tokens=400)
    result = ask(settings, kind, streamed, tools=[get_weather], model_settings=told, output_type=Order)
    calls = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
    return {
        "calls": [[call.name, json.loads(call.arguments)] for call in calls],
        "order": result.final_output.model_dump(),
    }


def responses_output(settings: Settings) -> Any:
    return order(settings, OpenAIResponsesModel)


def chat_output(settings: Settings) -> Any:
    return order(settings, OpenAIChatCompletionsModel)


def responses_loop(settings: Settings) -> Any:
    return loop(settings, OpenAIResponsesModel)


def responses_loop_streamed(settings: Settings) -> Any:
    return loop(settings, OpenAIResponsesModel, streamed=True)


def chat_loop(settings: Settings) -> Any:
    return loop(settings, OpenAIChatCompletionsModel)


def chat_loop_streamed(settings: Settings) -> Any:
    return loop(settings, OpenAIChatCompletionsModel, streamed=True)


without_tracing(True)
main(responses_output, chat_output, responses_loop, responses_loop_streamed, chat_loop, chat_loop_streamed)
