"""Pydantic AI: an agent with tools, and output of a type, by chat completions and by responses."""

from typing import Any

from flows import QUESTION, WEATHER, Order, Settings, main
from pydantic_ai import Agent, ModelSettings, NativeOutput
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider


def model(settings: Settings, kind: Any = OpenAIChatModel) -> Any:
    limits = ModelSettings(max_tokens=1000, timeout=20)
    return kind(settings.model, provider=OpenAIProvider(base_url=settings.v1, api_key="unused"), settings=limits)


def tool_output(settings: Settings) -> Any:
    return Agent(model(settings), output_type=Order).run_sync(QUESTION).output.model_dump()


def native_output(settings: Settings) -> Any:
    return Agent(model(settings), output_type=NativeOutput(Order)).run_sync(QUESTION).output.model_dump()


def responses_output(settings: Settings) -> Any:
    return Agent(model(settings, OpenAIResponsesModel), output_type=Order).run_sync(QUESTION).output.model_dump()


def streamed_output(settings: Settings) -> Any:
    stages = Agent(model(settings), output_type=NativeOutput(Order)).run_stream_sync(QUESTION)
    return [stage.model_dump() for stage in stages.stream_output(debounce_by=None)][-1]


def agent(settings: Settings) -> Any:
    """A tool, then text; told to call, it is told so for the first turn only."""

    def limits(context: Any) -> ModelSettings:
        told = settings.choice == "required" and context.run_step <= 1
        return ModelSettings(tool_choice="required") if told else ModelSettings(max_tokens=60)

    made = Agent(model(settings), model_settings=limits)

    @made.tool_plain
    def get_weather(city: str) -> str:
        """Get the weather"""
        return WEATHER if city is not None else ""

    run = made.run_sync(QUESTION)
    parts = [part for message in run.all_messages() for part in message.parts]
    calls = [[part.tool_name, part.args_as_dict()] for part in parts if isinstance(part, ToolCallPart)]
    return {"calls": calls, "text": run.output}


main(tool_output, native_output, responses_output, streamed_output, agent)
