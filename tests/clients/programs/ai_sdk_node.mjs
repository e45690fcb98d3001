// Vercel's AI SDK with its provider for compatible servers.

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, embedMany, generateText, jsonSchema, streamText, tool } from "ai";
import { ADD, EMBEDDING, KEY, MAX_TOKENS, MODEL, QUESTION, TEXTS, V1, tell } from "./asked.mjs";

const tandem = createOpenAICompatible({
  name: "tandem",
  baseURL: V1,
  apiKey: KEY,
  supportsStructuredOutputs: true,
});
const asked = { model: tandem(MODEL), prompt: QUESTION, temperature: 0 };
const whole = await generateText({ ...asked, maxOutputTokens: MAX_TOKENS });
let streamed = "";
for await (const part of streamText({ ...asked, maxOutputTokens: MAX_TOKENS }).textStream) {
  streamed += part;
}
const parsed = await generateText({
  ...asked,
  maxOutputTokens: 200,
  output: Output.object({ schema: jsonSchema(ADD) }),
});
const called = await generateText({
  ...asked,
  maxOutputTokens: 200,
  tools: { add: tool({ description: "Add two numbers.", inputSchema: jsonSchema(ADD) }) },
  toolChoice: { type: "tool", toolName: "add" },
});
const vectors = await embedMany({
  model: tandem.embeddingModel(EMBEDDING),
  values: TEXTS,
});
tell({
  text: whole.text,
  streamed,
  parsed: parsed.output,
  called: [called.toolCalls[0].toolName, called.toolCalls[0].input],
  vectors: vectors.embeddings,
});
