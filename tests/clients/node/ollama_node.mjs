// Ollama's client for Node: chats, prompts, tools, forms, models, vectors.

import { Ollama } from "ollama";
import { z } from "zod";
import { main, Order, QUESTION, WEATHER } from "./flows.mjs";

const client = ({ url }) => new Ollama({ host: url });
const messages = [{ role: "user", content: QUESTION }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "get_weather", description: "Get the weather", parameters } }];

async function joined(stream, text) {
  let found = "";
  for await (const piece of stream) found += text(piece) ?? "";
  return found;
}

async function chat(settings) {
  const asked = { model: `${settings.model}:latest`, messages, options: { num_predict: 20, num_ctx: 99 } };
  const whole = await client(settings).chat(asked);
  const stream = await client(settings).chat({ ...asked, stream: true });
  return [whole.message.content, await joined(stream, (piece) => piece.message.content), whole.done_reason];
}

async function generate(settings) {
  const asked = { model: settings.model, prompt: QUESTION, options: { num_predict: 20 } };
  const whole = await client(settings).generate(asked);
  const stream = await client(settings).generate({ ...asked, stream: true });
  return [whole.response, await joined(stream, (piece) => piece.response), whole.done_reason];
}

async function form(settings) {
  const asked = { model: settings.model, messages, format: z.toJSONSchema(Order), options: { num_predict: 500 } };
  return Order.parse(JSON.parse((await client(settings).chat(asked)).message.content));
}

/** The first turn as a stream. Ollama's API cannot say that a tool must be called. */
async function tool_loop(settings) {
  const asked = { model: settings.model, tools, options: { num_predict: 60 } };
  const calls = [];
  for await (const piece of await client(settings).chat({ ...asked, messages, stream: true }))
    calls.push(...(piece.message.tool_calls ?? []));
  const results = calls.map((call) => ({ role: "tool", content: WEATHER, tool_name: call.function.name }));
  const turns = [...messages, { role: "assistant", content: "", tool_calls: calls }, ...results];
  const text = calls.length ? (await client(settings).chat({ ...asked, messages: turns })).message.content : "";
  return { calls: calls.map((call) => [call.function.name, call.function.arguments]), text };
}

async function models(settings) {
  const here = client(settings);
  const names = [await here.list(), await here.ps()].map((found) => found.models.map((model) => model.model));
  return [...names, (await here.show({ model: settings.model })).capabilities.includes("tools")];
}

async function vectors(settings) {
  const { embeddings } = await client(settings).embed({ model: settings.model, input: ["one", "two"] });
  return [embeddings.length, JSON.stringify(embeddings[0]) !== JSON.stringify(embeddings[1])];
}

await main({ chat, generate, form, tool_loop, models, vectors });
