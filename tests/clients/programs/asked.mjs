// What every program asks, and whom; and how it says what it heard.

const [url, model, embedding] = process.argv.slice(2);
export const V1 = `${url}/v1`;
export const MODEL = model;
export const EMBEDDING = embedding;
export const KEY = "none"; // this server asks for none, and most clients insist on one
export const QUESTION = "Tom has 3 apples.";
export const MAX_TOKENS = 24;
export const TEXTS = [
  "A heron stands in the water.",
  "The train leaves at noon.",
  "Bread is baked at night.",
];
export const ADD = {
  type: "object",
  properties: { a: { enum: [1, 2] }, b: { enum: [3, 4] } },
  required: ["a", "b"],
  additionalProperties: false,
};

export function tell(heard) {
  console.log(JSON.stringify(heard));
}
