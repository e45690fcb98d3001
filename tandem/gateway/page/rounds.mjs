// The last rounds of an answer: drafts above, time below, one column a round.
import { html } from "./html.mjs";
import { milliseconds, say } from "./language.mjs";

const SHOWN = 30;
const TIMES_PX = 44;

export function Rounds({ rounds }) {
  if (!rounds.length) return null;
  const shown = rounds.slice(-SHOWN);
  const longest = Math.max(...shown.map((round) => total(parts(round))), 1e-3);
  const last = shown.findLast((round) => round.round_s > 0); // the cloud's own tokens come without one
  return html`<section class="rounds" aria-label=${say("rounds")}>
    <h3>
      <span>${say("rounds")}: ${rounds.length}</span>
      ${last &&
      html`<span class="key">${say("lastRound", {
        total: milliseconds(total(parts(last))),
        link: milliseconds(parts(last).link),
        target: milliseconds(last.verify_s),
      })}</span>`}
    </h3>
    <ol class="strip">
      ${shown.map((round, index) => Round({ round, before: rounds[rounds.length - shown.length + index - 1], longest, isLast: index === shown.length - 1 }))}
    </ol>
    <p class="hint key" aria-hidden="true">
      <span>${say("keyDrafts")}<i class="yes"></i>${say("keyAccepted")}<i class="no"></i>${say("keyRejected")}<i class="waits"></i>${say("keyInFlight")}</span>
      <span>${say("keyTime")}<i class="in-draft"></i>${say("keyDrafting")}<i class="in-link"></i>${say("keyLink")}<i class="in-queue"></i>${say("keyQueue")}<i class="in-pass"></i>${say("keyTarget")}</span>
    </p>
  </section>`;
}

function Round({ round, before, longest, isLast }) {
  const resumed = round.resumes > (before?.resumes ?? 0);
  const drafts = Math.max(round.drafted, round.accepted);
  const times = parts(round);
  const words =
    say("roundWords", {
      drafted: round.drafted,
      accepted: round.accepted,
      inFlight: round.in_flight,
      total: milliseconds(total(times)),
      draft: milliseconds(times.draft),
      link: milliseconds(times.link),
      target: milliseconds(times.pass),
    }) + (resumed ? `; ${say("roundResumed")}` : "");
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
