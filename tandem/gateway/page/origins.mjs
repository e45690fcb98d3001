// Who made a token, in words and colours.
import { SOURCES, originOf } from "./conversation.mjs";
import { say } from "./language.mjs";

const FURTHER = 4; // colours of sides beyond the cloud
const WORDS = {
  draft: "sourceDraft",
  cloud_draft: "sourceCloudDraft",
  target: "sourceTarget",
  edge: "sourceEdge",
  device: "sourceDevice",
  cloud: "sourceCloud",
  both: "sourceBoth",
  recovered: "sourceRecovered",
};

export const wordsOfOrigin = (origin) =>
  WORDS[origin] ? say(WORDS[origin]) : say("sourceSide", { name: origin.replace(/^side /, "") });

export const originWords = (token) =>
  wordsOfOrigin(originOf(token)) + (token.sides.length > 1 ? `: ${token.sides.join(", ")}` : "");

// Sides beyond the cloud have colours in the order in which they come, and again after the last.
export function classesOf(tokens) {
  const classes = Object.fromEntries(SOURCES.map((source) => [source, source]));
  let further = 0;
  for (const token of tokens) {
    const origin = originOf(token);
    if (!(origin in classes)) classes[origin] = `further-${1 + (further++ % FURTHER)}`;
  }
  return classes;
}

// { origin, count } of those that made tokens, the usual sources first.
export function countsOf(tokens) {
  const counts = {};
  for (const token of tokens) counts[originOf(token)] = (counts[originOf(token)] ?? 0) + 1;
  const made = [...SOURCES, ...Object.keys(counts)].filter(
    (origin, index, all) => counts[origin] && all.indexOf(origin) === index,
  );
  return made.map((origin) => ({ origin, count: counts[origin] }));
}
