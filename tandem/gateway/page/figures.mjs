// What an answer took: a plain line that everybody can read, and all figures for those who want them.
// Nothing that is estimated is said as if it had been measured.
import { TURNS, comparedWords } from "./comparing.mjs";
import { firstDifference, isOpen } from "./conversation.mjs";
import { html } from "./html.mjs";
import { kibibytes, many, milliseconds, number, say } from "./language.mjs";

// How a text relates to what the large model alone gives.
const EXACTNESS = { bit_for_bit: "exactBits", up_to_rounding: "exactRounding" };
const REASONS = ["first", "acceptance", "round_trip", "load", "step_times", "trial"];

// "46 tokens/s · 44 % drafted on the device · about 2.1 times as fast as the large model alone (estimated)".
export function PlainLine({ figures, other }) {
  const said = [];
  if (figures.tpot_s) said.push(say("plainSpeed", { speed: number(1 / figures.tpot_s, 1 / figures.tpot_s < 10 ? 1 : 0) }));
  else said.push(say("plainTokens", { count: figures.tokens }));
  if (!figures.device) said.push(...shares(figures));
  // Of an answer beside that of the large model alone the difference is measured, and a note below says it.
  const alone = figures.choice?.cloud_alone_tpot_s;
  if (alone && figures.tpot_s && figures.accepted > 0 && !other) {
    said.push(say("plainRatio", { ratio: number(alone / figures.tpot_s, 1) }));
  }
  return html`<p class="plain">${said.join(" · ")}</p>`;
}

// Where which part of the tokens had been drafted; no part that rounds to nothing.
function shares(figures) {
  const repeated = figures.accepted_memory_tokens || 0;
  const made = [
    ["plainShare", Math.max(0, figures.accepted - repeated)],
    ["plainRepeated", repeated],
    ["plainCloudShare", figures.cloud_drafted ? figures.cloud_accepted : 0],
  ];
  const percents = made.map(([name, tokens]) => [name, Math.round((100 * tokens) / Math.max(1, figures.tokens))]);
  const shown = percents.filter(([, share]) => share > 0).map(([name, share]) => say(name, { share: number(share) }));
  return shown.length || figures.unverified?.length ? shown : [say("plainAlone")];
}

export function Figures({ figures }) {
  const tokens = Math.max(1, figures.tokens);
  const told = [
    ["figureFirst", figures.ttft_s === null ? null : milliseconds(figures.ttft_s)],
    ["figurePerToken", figures.tpot_s === null ? null : milliseconds(figures.tpot_s)],
    ["figureSpeed", figures.tpot_s ? number(1 / figures.tpot_s) : null],
    ["figureAccepted", figures.acceptance_rate === null ? null : `${number(100 * figures.acceptance_rate)} %`],
    ["figurePasses", figures.device ? null : number(figures.target_passes / tokens, 2)],
    [
      "figureBytes",
      say("bytesUpDown", {
        up: number(figures.uplink_bytes / tokens),
        down: number(figures.downlink_bytes / tokens),
      }),
    ],
    ["figureExactness", figures.exactness in EXACTNESS ? say(EXACTNESS[figures.exactness]) : null],
  ];
  return html`<dl class="figures">
      ${told.filter(([, value]) => value !== null).map(
        ([name, value]) => html`<div><dt>${say(name)}</dt><dd>${value}</dd></div>`,
      )}
    </dl>
    ${figures.choice && html`<p class="note">${choiceNote(figures)}</p>`}`;
}

// What must be known to judge an answer, in either view.
export function Notes({ answer, other }) {
  const { figures } = answer;
  const notes = [];
  if (answer.endedBy === "length") notes.push(say("noteLength", { count: figures.tokens }));
  if (figures.resumes) notes.push(say("noteResumed", { count: figures.resumes }));
  if (figures.unverified?.length) notes.push(say("noteUnverified", { count: figures.unverified.length }));
  if (figures.draft_context) notes.push(say("noteDraftContext", { most: many(figures.draft_context) }));
  if (figures.lossy) notes.push(say("noteLossy"));
  if (figures.device) notes.push(documentsNote(figures));
  if (other) notes.push(comparison(answer, other));
  return notes.map((note) => html`<p class="note">${note}</p>`);
}

// What a preset that chooses went by at last, and what it takes the large model alone for.
function choiceNote({ choice, preset }) {
  return say("noteChoice", {
    preset,
    schedule: choice.schedule,
    decisions: say("times", { count: choice.decisions }),
    reason: REASONS.includes(choice.reason) ? say(`reason-${choice.reason}`) : choice.reason,
    expected: milliseconds(choice.expected_tpot_s),
    alone: milliseconds(choice.cloud_alone_tpot_s),
    how: say(choice.cloud_alone_measured ? "measured" : "estimated"),
  });
}

function documentsNote({ device, cloud, uplink_bytes: bytes }) {
  const named = [...device.names, say("tokens", { count: device.document_tokens })].join(", ");
  const used = {
    count: device.documents,
    named,
    cloudCount: cloud.documents,
    cloudTokens: cloud.document_tokens,
  };
  const left = { count: device.drafted, size: kibibytes(bytes) };
  return `${say("documentsUsed", used)} ${say("leftDevice", left)}`;
}

// The same seed gives the same text by every preset that is not lossy and couples its draws.
function comparison(answer, other) {
  if (isOpen(other)) return say("comparing", { preset: other.preset });
  if (other.isComparing) return say("comparingTurns", { count: other.turns.length + 1, most: many(TURNS) });
  const at = firstDifference(answer, other);
  const text = at < 0 ? say("sameText") : say("differentText", { place: at + 1 });
  return `${text} ${comparedWords(other.turns, answer.preset, other.preset)}`.trim();
}
