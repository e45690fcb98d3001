// The last rounds of an answer: drafts above, time below, one column a round.
import { html } from "./html.mjs";

const SHOWN = 30;
const TIMES_PX = 44;

export function Rounds({ rounds }) {
  if (!rounds.length) return null;
  const shown = rounds.slice(-SHOWN);
  const longest = Math.max(...shown.map((round) => total(parts(round))), 1e-3);
  const last = shown.findLast((round) => round.round_s > 0); // the cloud's own tokens come without one
  return html`<section class="rounds" aria-label="Rounds">
    <h3>
      <span>Rounds: ${rounds.length}</span>
      ${last &&
      html`<span class="key">the last took ${milliseconds(total(parts(last)))}: link ${milliseconds(parts(last).link)}, target ${milliseconds(last.verify_s)}</span>`}
    </h3>
    <ol class="strip">
      ${shown.map((round, index) => Round({ round, before: rounds[rounds.length - shown.length + index - 1], longest, isLast: index === shown.length - 1 }))}
    </ol>
    <p class="hint key" aria-hidden="true">
      <span>Drafts:<i class="yes"></i>accepted<i class="no"></i>not<i class="waits"></i>in flight</span>
      <span>Time:<i class="in-draft"></i>drafting<i class="in-link"></i>link<i class="in-queue"></i>queue<i class="in-pass"></i>target</span>
    </p>
  </section>`;
}

function Round({ round, before, longest, isLast }) {
  const resumed = round.resumes > (before?.resumes ?? 0);
  const drafts = Math.max(round.drafted, round.accepted);
  const times = parts(round);
  const words =
    `${round.drafted} drafted, ${round.accepted} accepted, ${round.in_flight} in flight, ` +
    `${milliseconds(total(times))}: ${milliseconds(times.draft)} drafting, ${milliseconds(times.link)} on the link, ` +
    `${milliseconds(times.pass)} in the target${resumed ? "; the link was cut, and the answer resumed" : ""}`;
  const cells = [
    ...Array(Math.min(drafts, 12)).fill(0).map((_, index) => (index < round.accepted ? "yes" : "no")),
    ...Array(isLast ? Math.min(round.in_flight, 6) : 0).fill("waits"),
  ];
  return html`<li class=${resumed ? "round resumed" : "round"} title=${words}>
    <span class="unseen">${words}</span>
    <span class="cells" aria-hidden="true">${cells.map((kind) => html`<i class=${kind}></i>`)}</span>
    <span class="times" aria-hidden="true">
      ${["pass", "queue", "link", "draft"].map(
        (name) => html`<i class=${`in-${name}`} style=${{ height: `${(TIMES_PX * times[name]) / longest}px` }}></i>`,
      )}
    </span>
  </li>`;
}

// Where a round's time went; what neither model needed was the link's.
function parts(round) {
  const models = round.draft_s + round.verify_s + round.queue_s;
  const link = Math.max(0, round.round_s - models);
  return { draft: round.draft_s, link, queue: round.queue_s, pass: round.verify_s };
}

const total = (times) => times.draft + times.link + times.queue + times.pass;

export const milliseconds = (seconds) =>
  seconds >= 1 ? `${seconds.toFixed(2)} s` : `${(seconds * 1e3).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
