// What was asked and answered. An answer is a value; each chunk of its stream makes the next one.

export const SOURCES = {
  draft: "accepted draft",
  target: "target’s own token",
  edge: "edge alone, not verified",
  device: "device’s documents",
  cloud: "cloud’s documents",
  both: "several sides’ documents",
  recovered: "drawn from all sides together",
};

// What a token is told by: its source, and of sides beyond the cloud which.
export const originOf = (token) => (token.source === "side" ? `side ${token.sides[0]}` : token.source);

export const wordsOfOrigin = (origin) => SOURCES[origin] ?? `${origin.slice("side ".length)}’s documents`;

export const newAnswer = (id, preset, seed) => ({
  id,
  preset,
  seed,
  text: "",
  tokens: [],
  rounds: [],
  figures: null,
  error: "",
  state: "waiting",
  beganMs: performance.now(),
  heardMs: performance.now(),
  firstMs: null,
  endedMs: null,
});

export const isOpen = (answer) => answer.state === "waiting" || answer.state === "streaming";

// The answer with one more piece of its stream.
export function withChunk(answer, choice, nowMs) {
  const told = choice.tandem ?? {};
  const content = choice.delta.content ?? "";
  const tokens = tokensOf(told.provenance ?? [], choice.logprobs?.content, content);
  const { provenance, rounds_ended, ...figures } = told;
  return {
    ...answer,
    state: choice.finish_reason ? "done" : "streaming",
    text: answer.text + content,
    tokens: tokens.length ? [...answer.tokens, ...tokens] : answer.tokens,
    rounds: rounds_ended ? [...answer.rounds, ...rounds_ended] : answer.rounds,
    figures: choice.finish_reason ? figures : answer.figures,
    preset: figures.preset ?? answer.preset,
    heardMs: nowMs,
    firstMs: answer.firstMs ?? (tokens.length ? nowMs : null),
    endedMs: choice.finish_reason ? nowMs : null,
  };
}

// A decoder of an earlier version does not say what tokens spell: their text goes to the last of them.
function tokensOf(provenance, likely, content) {
  return provenance.map((made, index) => {
    const last = index === provenance.length - 1;
    return {
      source: made.source ?? "target",
      sides: made.sides ?? [],
      text: made.text ?? (last ? content : ""),
      logprob: likely?.[index]?.logprob ?? null,
      alternatives: likely?.[index]?.top_logprobs ?? [],
    };
  });
}

// The first token in which two answers differ; -1 where neither has another one so far.
export function firstDifference(one, other) {
  const shared = Math.min(one.text.length, other.text.length);
  for (let index = 0; index < shared; index += 1) {
    if (one.text[index] !== other.text[index]) return index;
  }
  const bothEnded = one.state === "done" && other.state === "done";
  return bothEnded && one.text.length !== other.text.length ? shared : -1;
}

// What is sent as the conversation so far: of each turn the first answer.
export function messagesOf(turns, question) {
  const said = turns.flatMap((turn) =>
    turn.answers[0].text
      ? [
          { role: "user", content: turn.question },
          { role: "assistant", content: turn.answers[0].text },
        ]
      : [],
  );
  return [...said, { role: "user", content: question }];
}

// Changes one answer of one turn.
export const withAnswer = (turns, id, change) =>
  turns.map((turn) =>
    turn.answers.some((answer) => answer.id === id)
      ? { ...turn, answers: turn.answers.map((each) => (each.id === id ? change(each) : each)) }
      : turn,
  );
