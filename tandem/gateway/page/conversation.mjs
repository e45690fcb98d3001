// What was asked and answered. An answer is a value; each chunk of its stream makes the next one.

export const SOURCES = ["draft", "cloud_draft", "target", "edge", "device", "cloud", "both", "recovered"];


export const newAnswer = (id, preset, seed) => ({
  id,
  preset,
  seed,
  text: "",
  thinking: "",
  tokens: [],
  rounds: [],
  figures: null,
  error: null,
  state: "waiting",
  endedBy: "",
  beganMs: performance.now(),
  heardMs: performance.now(),
  longestGapMs: 0, // between two pieces
  firstMs: null,
  endedMs: null,
  turns: [], // of a comparison: the figures of both answers of each turn, as {own, alone}
  isComparing: false, // more turns are to come
});

export const isOpen = (answer) => answer.state === "waiting" || answer.state === "streaming";

// The answer with one more piece of its stream.
export function withChunk(answer, choice, nowMs) {
  const told = choice.tandem ?? {};
  const content = choice.delta.content ?? "";
  const thinking = choice.delta.reasoning_content ?? "";
  const tokens = tokensOf(told.provenance ?? [], choice.logprobs?.content, content);
  const { provenance, rounds_ended, ...figures } = told;
  return {
    ...answer,
    state: choice.finish_reason ? "done" : "streaming",
    endedBy: choice.finish_reason ?? "",
    text: answer.text + content,
    thinking: answer.thinking + thinking,
    tokens: tokens.length ? [...answer.tokens, ...tokens] : answer.tokens,
    rounds: rounds_ended ? [...answer.rounds, ...rounds_ended] : answer.rounds,
    figures: choice.finish_reason ? figures : answer.figures,
    preset: figures.preset ?? answer.preset,
    heardMs: nowMs,
    longestGapMs: answer.firstMs === null ? 0 : Math.max(answer.longestGapMs, nowMs - answer.heardMs),
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
      text: made.text ?? (last ? content : ""),
      logprob: likely?.[index]?.logprob ?? null,
      alternatives: likely?.[index]?.top_logprobs ?? [],
    };
  });
}

// The answer as it is kept: without rounds and alternatives, which take most of the room, and perhaps
// without tokens.
export function packedAnswer(answer, withTokens) {
  const { preset, seed, text, thinking, figures, error, endedBy, turns } = answer;
  const tokens = withTokens
    ? answer.tokens.map(({ source, text: spelt, logprob }) => [source, spelt, logprob])
    : [];
  const tookMs = (answer.endedMs ?? performance.now()) - answer.beganMs;
  const state = isOpen(answer) ? "stopped" : answer.state; // as it would be found after this page
  return { preset, seed, text, thinking, figures, error, endedBy, state, tokens, tookMs, turns };
}

// Raises TypeError for what is no answer.
export function loadedAnswer(packed, id) {
  const tokens = packed.tokens.map(([source, text, logprob]) => ({
    source: String(source),
    text: String(text),
    logprob: typeof logprob === "number" ? logprob : null,
    alternatives: [],
  }));
  return {
    ...newAnswer(id, String(packed.preset), Number(packed.seed)),
    text: String(packed.text),
    thinking: String(packed.thinking ?? ""),
    figures: packed.figures ?? null,
    error: packed.error ?? null,
    endedBy: String(packed.endedBy ?? ""),
    turns: packed.turns ?? [],
    state: ["done", "failed"].includes(packed.state) ? packed.state : "stopped",
    tokens,
    beganMs: 0,
    endedMs: Number(packed.tookMs) || 0,
  };
}

// The first character in which two answers differ; -1 where neither has another one so far.
export function firstDifference(one, other) {
  const shared = Math.min(one.text.length, other.text.length);
  for (let index = 0; index < shared; index += 1) {
    if (one.text[index] !== other.text[index]) return index;
  }
  const bothEnded = one.state === "done" && other.state === "done";
  return bothEnded && one.text.length !== other.text.length ? shared : -1;
}

// What is sent: the system prompt, if there is one, of each earlier turn the first answer, the question.
export function messagesOf(turns, question, system) {
  const said = turns.flatMap((turn) =>
    turn.answers[0].text
      ? [
          { role: "user", content: turn.question },
          { role: "assistant", content: turn.answers[0].text },
        ]
      : [],
  );
  const first = system.trim() ? [{ role: "system", content: system.trim() }] : [];
  return [...first, ...said, { role: "user", content: question }];
}

// Changes one answer of one turn; turns without it are the same value as before.
export const withAnswer = (turns, id, change) =>
  turns.some((turn) => turn.answers.some((answer) => answer.id === id))
    ? turns.map((turn) =>
        turn.answers.some((answer) => answer.id === id)
          ? { ...turn, answers: turn.answers.map((each) => (each.id === id ? change(each) : each)) }
          : turn,
      )
    : turns;
