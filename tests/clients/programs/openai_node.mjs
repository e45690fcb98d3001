// The npm package openai.

import OpenAI from "openai";
import { ADD, EMBEDDING, KEY, MAX_TOKENS, MODEL, QUESTION, TEXTS, V1, tell } from "./asked.mjs";

const client = new OpenAI({ baseURL: V1, apiKey: KEY });
const asked = { model: MODEL, messages: [{ role: "user", content: QUESTION }], temperature: 0 };
const brief = { ...asked, max_tokens: MAX_TOKENS };
const whole = await client.chat.completions.create(brief);
let streamed = "";
for await (const chunk of await client.chat.completions.create({ ...brief, stream: true })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
}
const response = await client.responses.create({
  model: MODEL,
  input: QUESTION,
  max_output_tokens: MAX_TOKENS,
  temperature: 0,
});
const called = await client.chat.completions.create({
  ...asked,
  max_tokens: 200,
  tools: [{ type: "function", function: { name: "add", parameters: ADD } }],
  tool_choice: "required",
  parallel_tool_calls: false,
});
const [call] = called.choices[0].message.tool_calls;
const vectors = await client.embeddings.create({ model: EMBEDDING, input: TEXTS });
tell({
  text: whole.choices[0].message.content,
  streamed,
  response: response.output_text,
  called: [call.function.name, JSON.parse(call.function.arguments)],
  vectors: vectors.data.map((each) => each.embedding),
});
