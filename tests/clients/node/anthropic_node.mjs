// Anthropic's SDK for Node: messages, streams, tools and their loop, counted tokens.

import Anthropic from "@anthropic-ai/sdk";
import { main, QUESTION, WEATHER } from "./flows.mjs";

const client = ({ url }) => new Anthropic({ baseURL: url, apiKey: "unused", timeout: 20000, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "Get the weather", input_schema }];
const texts = ({ content }) => content.map((block) => block.text ?? "").join("");

async function message(settings) {
  const answer = await client(settings).messages.create({ model: settings.model, max_tokens: 20, messages });
  return [texts(answer), answer.stop_reason];
}

async function streamed(settings) {
  const stream = client(settings).messages.stream({ model: settings.model, max_tokens: 20, messages });
  let text = "";
  stream.on("text", (delta) => (text += delta));
  const answer = await stream.finalMessage();
  if (text !== texts(answer)) throw new Error(`${text} is not ${texts(answer)}`);
  return [text, answer.stop_reason];
}

async function counted(settings) {
  const asked = { model: settings.model, messages, tools, system: "Be short." };
  const answer = await client(settings).messages.create({ ...asked, max_tokens: 1 });
  const taken = answer.usage.input_tokens + (answer.usage.cache_read_input_tokens ?? 0);
  return [(await client(settings).messages.countTokens(asked)).input_tokens, taken];
}

/** The first turn as a stream, the second in one piece. */
async function tool_loop(settings) {
  const type = settings.choice === "required" ? "any" : "auto";
  const asked = { model: settings.model, tools, max_tokens: 200 };
  const told = { ...asked, messages, tool_choice: { type, disable_parallel_tool_use: true } };
  const first = await client(settings).messages.stream(told).finalMessage();
  const calls = first.content.filter((block) => block.type === "tool_use");
  const content = calls.map(({ id }) => ({ type: "tool_result", tool_use_id: id, content: WEATHER }));
  const turns = [...messages, { role: "assistant", content: first.content }, { role: "user", content }];
  const second = await client(settings).messages.create({ ...asked, max_tokens: 60, messages: turns });
  return { stop: first.stop_reason, calls: calls.map((call) => [call.name, call.input]), text: texts(second) };
}

/** The SDK's own loop; it has one choice for all turns, so told to call it has one turn. */
async function tool_runner(settings) {
  const calls = [];
  const run = (input) => (calls.push(["get_weather", input]), WEATHER);
  const own = { ...tools[0], run, parse: (input) => input };
  const told = settings.choice === "required" ? { tool_choice: { type: "any" }, max_iterations: 1 } : {};
  const asked = { model: settings.model, max_tokens: 200, messages, tools: [own], ...told };
  const runner = client(settings).beta.messages.toolRunner(asked);
  let text = "";
  for await (const turn of runner) text = texts(turn);
  return { calls, text };
}

await main({ message, streamed, counted, tool_loop, tool_runner });
