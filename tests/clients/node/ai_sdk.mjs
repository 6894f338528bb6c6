// The Vercel AI SDK: objects, texts and tools, by chat completions and by responses (what `createOpenAI` uses).

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, stepCountIs, streamObject, streamText, tool } from "ai";
import { City, main, Order, QUESTION, WEATHER } from "./flows.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;
const compatible = ({ v1, model }) =>
  createOpenAICompatible({ name: "dynamod", baseURL: v1, apiKey: "unused", supportsStructuredOutputs: true })(model);
const openai = ({ v1, model }) => createOpenAI({ baseURL: v1, apiKey: "unused" })(model);
const limits = { maxRetries: 0, prompt: QUESTION };

const tools = {
  get_weather: tool({ description: "Get the weather", inputSchema: City, execute: async () => WEATHER }),
};

/** Several steps; told to call, the model is told so for the first of them only. */
const agent = ({ choice }) => ({
  ...limits,
  tools,
  maxOutputTokens: 200,
  stopWhen: stepCountIs(4),
  prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? choice : "auto" }),
});

const called = (steps) => steps.flatMap((step) => step.toolCalls.map((call) => [call.toolName, call.input]));

async function object(model) {
  return (await generateObject({ ...limits, model, schema: Order })).object;
}

async function object_stream(model) {
  const result = streamObject({ ...limits, model, schema: Order });
  for await (const _ of result.partialObjectStream);
  return await result.object;
}

async function output(model) {
  return (await generateText({ ...limits, model, output: Output.object({ schema: Order }) })).output;
}

async function text_stream(model) {
  const result = streamText({ ...limits, model, maxOutputTokens: 20 });
  let text = "";
  for await (const piece of result.textStream) text += piece;
  return [text, await result.text, await result.finishReason];
}

async function loop(model, settings) {
  const { steps, text } = await generateText({ ...agent(settings), model });
  return { calls: called(steps), text };
}

async function loop_stream(model, settings) {
  const failed = [];
  const result = streamText({ ...agent(settings), model, onError: ({ error }) => failed.push(error) });
  for await (const _ of result.fullStream);
  if (failed.length) throw failed[0];
  return { calls: called(await result.steps), text: await result.text };
}

/** Tools first, and then an object: both are asked for in each step. */
async function loop_output(model, settings) {
  const { steps, output } = await generateText({ ...agent(settings), model, output: Output.object({ schema: Order }) });
  return { calls: called(steps), order: output };
}

/** A second question behind the first answer, which goes back as the SDK keeps it: by responses as a reference. */
async function conversation(model) {
  const first = await generateText({ ...limits, model, maxOutputTokens: 20 });
  const { response } = first;
  const asked = { role: "user", content: QUESTION };
  const messages = [asked, ...response.messages, asked];
  const second = await generateText({ model, maxRetries: 0, messages, maxOutputTokens: 20 });
  return [first.usage.inputTokens + first.usage.outputTokens < second.usage.inputTokens, second.text];
}

const flows = { object, object_stream, output, text_stream, loop, loop_stream, loop_output, conversation };
const over = (prefix, make) =>
  Object.entries(flows).map(([name, flow]) => [`${prefix}_${name}`, (settings) => flow(make(settings), settings)]);
await main(Object.fromEntries([...over("chat", compatible), ...over("responses", openai)]));
