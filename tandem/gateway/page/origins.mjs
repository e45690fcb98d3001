// Who made a token, in words and colours.
import { SOURCES } from "./conversation.mjs";
import { say } from "./language.mjs";

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

export const sourceWords = (source) => (WORDS[source] ? say(WORDS[source]) : source);

// { source, count } of those that made tokens, in the order of the legend.
export function countsOf(tokens) {
  const counts = {};
  for (const { source } of tokens) counts[source] = (counts[source] ?? 0) + 1;
  return SOURCES.filter((source) => counts[source]).map((source) => ({ source, count: counts[source] }));
}
