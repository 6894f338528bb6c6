// OpenAI's SDK for Node: forms with zod, streams, and tools that the SDK runs itself.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { main, Order, QUESTION, WEATHER } from "./flows.mjs";

const client = ({ v1 }) => new OpenAI({ baseURL: v1, apiKey: "unused", timeout: 20000, maxRetries: 0 });
const messages = [{ role: "user", content: QUESTION }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

/** The tool, and the calls that it has got. */
function tool(calls) {
  const run = (args) => (calls.push(["get_weather", args]), WEATHER);
  const own = { name: "get_weather", description: "Get the weather", parameters, parse: JSON.parse, function: run };
  return { type: "function", function: own };
}

async function parse(settings) {
  const response_format = zodResponseFormat(Order, "order");
  const answer = await client(settings).chat.completions.parse({ model: settings.model, messages, response_format });
  return answer.choices[0].message.parsed;
}

async function text_stream(settings) {
  const stream = client(settings).chat.completions.stream({ model: settings.model, messages, max_tokens: 20 });
  let text = "";
  stream.on("content", (delta) => (text += delta));
  const whole = await stream.finalContent();
  return [text, whole];
}

/** Told to call, the model would never end: the SDK calls once then, for it has one choice for all turns. */
async function run_tools(settings) {
  const calls = [];
  const told = { type: "function", function: { name: "get_weather" } };
  const tool_choice = settings.choice === "required" ? told : "auto";
  const asked = { model: settings.model, messages, max_tokens: 200, tools: [tool(calls)], tool_choice };
  const runner = client(settings).chat.completions.runTools(asked);
  await runner.done();
  return { calls, text: tool_choice === "auto" ? await runner.finalContent() : null };
}

async function run_tools_streamed(settings) {
  const calls = [];
  const told = { type: "function", function: { name: "get_weather" } };
  const tool_choice = settings.choice === "required" ? told : "auto";
  const asked = { model: settings.model, messages, max_tokens: 200, tools: [tool(calls)], tool_choice, stream: true };
  const runner = client(settings).chat.completions.runTools(asked);
  let text = "";
  runner.on("content", (delta) => (text += delta));
  await runner.done();
  return { calls, text };
}

/** The loop by hand: told to call on the first turn only. */
async function tool_loop(settings) {
  const turns = [...messages];
  const calls = [];
  const { function: own } = tool([]);
  const tools = [{ type: "function", function: { name: own.name, description: own.description, parameters } }];
  for (let tool_choice = settings.choice; turns.length < 9; tool_choice = "auto") {
    const asked = { model: settings.model, messages: turns, tools, tool_choice, max_tokens: 60 };
    const { message } = (await client(settings).chat.completions.create(asked)).choices[0];
    if (!message.tool_calls?.length) return { calls, text: message.content };
    turns.push(message);
    for (const call of message.tool_calls) {
      calls.push([call.function.name, JSON.parse(call.function.arguments)]);
      turns.push({ role: "tool", tool_call_id: call.id, content: WEATHER });
    }
  }
  throw new Error("no end of calls");
}

async function responses_parse(settings) {
  const asked = { model: settings.model, input: QUESTION, text: { format: zodTextFormat(Order, "order") } };
  return (await client(settings).responses.parse(asked)).output_parsed;
}

/** The result goes back with the id of the response that asked for it. */
async function responses_loop(settings) {
  const { responses } = client(settings);
  const tools = [{ type: "function", name: "get_weather", description: "Get the weather", parameters, strict: true }];
  const first = await responses.create({ model: settings.model, input: QUESTION, tools, tool_choice: settings.choice });
  const asked = first.output.filter((item) => item.type === "function_call");
  const input = asked.map(({ call_id }) => ({ type: "function_call_output", call_id, output: WEATHER }));
  const more = { model: settings.model, input, tools, max_output_tokens: 60, previous_response_id: first.id };
  const stream = responses.stream(more);
  let text = "";
  stream.on("response.output_text.delta", (event) => (text += event.delta));
  const whole = (await stream.finalResponse()).output_text;
  if (text !== whole) throw new Error(`${text} is not ${whole}`);
  return { calls: asked.map((call) => [call.name, JSON.parse(call.arguments)]), text };
}

await main({ parse, text_stream, run_tools, run_tools_streamed, tool_loop, responses_parse, responses_loop });
