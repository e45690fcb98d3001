// One answer: its tokens by who made them, its rounds as they happen, its figures.
import { SOURCES, firstDifference, isOpen, originOf, wordsOfOrigin } from "./conversation.mjs";
import { html } from "./html.mjs";
import { Rounds, milliseconds } from "./rounds.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";

const SILENT_MS = 1500;
const FURTHER = 4; // colours of sides beyond the cloud

export function Answer({ answer, title, other, actions, onRetry }) {
  const nowMs = useNow(isOpen(answer));
  const elapsedMs = (answer.endedMs ?? nowMs) - answer.beganMs;
  const silentMs = nowMs - answer.heardMs;
  return html`<article class="card answer" aria-busy=${isOpen(answer)}>
    <header>
      <h2>${title}</h2>
      <span>seed ${answer.seed}</span>
      <span class="clock" aria-label="time">${(Math.max(0, elapsedMs) / 1e3).toFixed(2)} s</span>
    </header>
    <p class="unseen">${answer.text}</p>
    <${Tokens} answer=${answer} />
    ${isOpen(answer) &&
    silentMs > SILENT_MS &&
    html`<p class="note" role="status">No word from the cloud for ${Math.floor(silentMs / 1e3)} s; the answer goes on when it is back.</p>`}
    ${answer.error &&
    html`<div class="trouble" role="alert">
      <span>${answer.error}</span>
      <button class="button small" onClick=${onRetry}>Try again</button>
    </div>`}
    ${answer.state === "stopped" && html`<p class="note">Stopped.</p>`}
    <${Legend} answer=${answer} />
    <${Rounds} rounds=${answer.rounds} />
    ${answer.figures && html`<${Figures} figures=${answer.figures} other=${other} answer=${answer} />`}
    ${actions}
  </article>`;
}

// One stop of the Tab key; arrows move from token to token, as the pointer does.
function Tokens({ answer }) {
  const [chosen, setChosen] = useState(-1);
  const list = useRef(null);
  const { tokens } = answer;
  const classes = classesOf(tokens);
  const idOf = (index) => `token-${answer.id}-${index}`;
  const onKeyDown = (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    let next = null;
    if (event.key in steps) next = Math.max(0, chosen + steps[event.key]);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = tokens.length - 1;
    if (event.key === "Escape") next = -1;
    if (next === null) return;
    event.preventDefault();
    setChosen(Math.min(next, tokens.length - 1));
  };
  useEffect(() => {
    if (chosen >= 0) list.current?.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  if (!tokens.length) {
    return isOpen(answer) ? html`<p class="tokens"><span class="caret"></span></p>` : null;
  }
  const onPointer = (event) => {
    const index = Number(event.target.dataset?.index ?? -1);
    if (index !== chosen) setChosen(index);
  };
  return html`<div>
    <div
      class="tokens"
      ref=${list}
      role="listbox"
      tabindex="0"
      aria-label="Tokens of the answer; arrow keys tell of each"
      aria-activedescendant=${chosen < 0 ? undefined : idOf(chosen)}
      onKeyDown=${onKeyDown}
      onFocus=${() => setChosen((index) => Math.max(0, index))}
      onBlur=${() => setChosen(-1)}
      onPointerOver=${onPointer}
      onPointerLeave=${() => setChosen(-1)}
    >
      ${tokens.map(
        (token, index) => html`<span
          key=${index}
          id=${idOf(index)}
          role="option"
          aria-selected=${index === chosen}
          aria-label=${wordsOf(token)}
          data-index=${index}
          class=${`token ${classes[originOf(token)]}${index === chosen ? " chosen" : ""}`}
        >${token.text}</span>`,
      )}${isOpen(answer) && html`<span class="caret" role="presentation"></span>`}
    </div>
    ${chosen >= 0 &&
    html`<${LookedAt} token=${tokens[chosen]} place=${() => document.getElementById(idOf(chosen))} />`}
  </div>`;
}

// A card beside the token: who made it, how likely it was, and what else might have stood there.
function LookedAt({ token, place }) {
  const card = useRef(null);
  useEffect(() => {
    const spot = place()?.getClientRects()[0];
    if (!spot || !card.current) return;
    const { offsetWidth: width, offsetHeight: height } = card.current;
    const left = Math.max(8, Math.min(spot.left, innerWidth - width - 8));
    const below = spot.bottom + 8;
    const top = below + height > innerHeight ? Math.max(8, spot.top - height - 8) : below;
    card.current.style.left = `${left}px`;
    card.current.style.top = `${top}px`;
  });
  return html`<div class="card looked-at" ref=${card} aria-hidden="true">
    <p class="spelt">
      <code>${visible(token.text)}</code>
      ${token.logprob !== null && html`<span>${percent(token.logprob)}</span>`}
    </p>
    <p>${originWords(token)}</p>
    ${token.alternatives.length > 0 &&
    html`<ol class="alternatives">
      ${token.alternatives.map(
        (each) => html`<li class=${each.token === token.text ? "this" : ""}>
          <code>${visible(each.token)}</code>
          <span class="bar"><i style=${{ width: `${100 * Math.exp(each.logprob)}%` }}></i></span>
          <span class="share">${percent(each.logprob)}</span>
        </li>`,
      )}
    </ol>`}
  </div>`;
}

function Legend({ answer }) {
  const counts = {};
  for (const token of answer.tokens) counts[originOf(token)] = (counts[originOf(token)] ?? 0) + 1;
  const classes = classesOf(answer.tokens);
  const made = [...Object.keys(SOURCES), ...Object.keys(counts)].filter(
    (origin, index, all) => counts[origin] && all.indexOf(origin) === index,
  );
  if (!made.length) return null;
  return html`<ul class="legend" aria-label="Who made the tokens">
    ${made.map(
      (origin) => html`<li>
        <span class=${`token ${classes[origin]}`} aria-hidden="true"></span>${wordsOfOrigin(origin)}${" "}<b>${counts[origin]}</b>
      </li>`,
    )}
  </ul>`;
}

// Sides beyond the cloud have colours in the order in which they come, and again after the last.
function classesOf(tokens) {
  const classes = Object.fromEntries(Object.keys(SOURCES).map((source) => [source, source]));
  let further = 0;
  for (const token of tokens) {
    const origin = originOf(token);
    if (!(origin in classes)) classes[origin] = `further-${1 + (further++ % FURTHER)}`;
  }
  return classes;
}

const originWords = (token) =>
  wordsOfOrigin(originOf(token)) + (token.sides.length > 1 ? `: ${token.sides.join(", ")}` : "");

function Figures({ figures, answer, other }) {
  const tokens = Math.max(1, figures.tokens);
  const told = [
    ["First token", figures.ttft_s === null ? null : milliseconds(figures.ttft_s)],
    ["Per token", figures.tpot_s === null ? null : milliseconds(figures.tpot_s)],
    ["Tokens/s", figures.tpot_s ? (1 / figures.tpot_s).toFixed(0) : null],
    ["Accepted", figures.acceptance_rate === null ? null : `${(100 * figures.acceptance_rate).toFixed(0)} %`],
    ["Target passes per token", figures.device ? null : (figures.target_passes / tokens).toFixed(2)],
    ["Bytes per token", `${(figures.uplink_bytes / tokens).toFixed(0)} up, ${(figures.downlink_bytes / tokens).toFixed(0)} down`],
  ];
  const notes = [];
  if (figures.resumes) notes.push(`The link was lost; the answer resumed ${times(figures.resumes)}, and no token changed.`);
  if (figures.unverified?.length) notes.push(`${figures.unverified.length} tokens were not verified: the cloud was lost.`);
  if (figures.lossy) notes.push("This preset changes the distribution of the answer.");
  if (figures.choice) notes.push(choiceNote(figures));
  if (figures.device) notes.push(documentsNote(figures));
  if (other) notes.push(comparison(answer, other));
  return html`<dl class="figures">
      ${told.filter(([, value]) => value !== null).map(
        ([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`,
      )}
    </dl>
    ${figures.more_sides && html`<${SidesTable} figures=${figures} />`}
    ${notes.map((note) => html`<p class="note">${note}</p>`)}`;
}

// What a preset that chooses went by at last, and what it takes the cloud alone for.
function choiceNote({ choice, preset }) {
  return (
    `${preset} chose ${choice.schedule} (decided ${times(choice.decisions)}, last by ${choice.reason.replaceAll("_", " ")}). Estimated per token: ${milliseconds(choice.expected_tpot_s)}; ` +
    `by the cloud alone: ${milliseconds(choice.cloud_alone_tpot_s)} (${choice.cloud_alone_measured ? "measured" : "estimated"}).`
  );
}

function documentsNote({ device, cloud, more_sides: more, uplink_bytes: bytes }) {
  const others = [["the cloud", cloud], ...(more ?? []).map((side) => [side.name, side])];
  const used = others.map(([name, side]) => `${side.documents} of ${name} (${side.document_tokens} tokens)`);
  const documents =
    `Documents: ${device.documents} of the device (${[...device.names, `${device.document_tokens} tokens`].join(", ")}), ` +
    `${used.join(", ")}. `;
  if (!more) {
    return `${documents}What left the device: the question and ${device.drafted} of its drafts, ${kibibytes(bytes)}.`;
  }
  const sent = others.map(([name, side]) => `${kibibytes(side.uplink_bytes)} to ${name}`);
  return `${documents}What left the device: the question and the tokens of the answer, ${sent.join(", ")}.`;
}

// Of more than two sides what each one's drafts and link were like.
function SidesTable({ figures: { device, cloud, more_sides: more } }) {
  const sides = [["device", device], ["cloud", cloud], ...more.map((side) => [side.name, side])];
  return html`<div class="sides"><table>
    <caption class="unseen">The sides of this answer</caption>
    <thead><tr>${["Side", "Documents", "Tokens made", "Accepted", "Round trip", "Sent to it", "Sent by it"].map((name) => html`<th scope="col">${name}</th>`)}</tr></thead>
    <tbody>${sides.map(
      ([name, side]) => html`<tr>
        <th scope="row">${name}</th>
        <td>${side.documents}</td>
        <td>${side.made}</td>
        <td>${side.acceptance_rate === null ? "–" : `${(100 * side.acceptance_rate).toFixed(0)} %`}</td>
        <td>${side.round_trip_s === null ? "–" : milliseconds(side.round_trip_s)}</td>
        <td>${name === "device" ? "–" : kibibytes(side.uplink_bytes)}</td>
        <td>${name === "device" ? "–" : kibibytes(side.downlink_bytes)}</td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}

// The same seed gives the same text by every preset that is not lossy and couples its draws.
function comparison(answer, other) {
  const at = firstDifference(answer, other);
  const [own, theirs] = [answer.figures.tpot_s, other.figures?.tpot_s];
  const speed =
    own && theirs
      ? ` Per token: ${milliseconds(own)} by ${answer.preset}, ${milliseconds(theirs)} by ${other.preset}.`
      : "";
  if (isOpen(other)) return `Comparing with ${other.preset}…`;
  return (at < 0 ? "The texts are the same." : `The texts differ from character ${at + 1} on.`) + speed;
}

function useNow(running) {
  const [nowMs, setNowMs] = useState(performance.now());
  useEffect(() => {
    if (!running) return undefined;
    const timer = setInterval(() => setNowMs(performance.now()), 100);
    return () => clearInterval(timer);
  }, [running]);
  return running ? Math.max(nowMs, 0) : nowMs;
}

const percent = (logprob) => {
  const share = 100 * Math.exp(logprob);
  return `${share >= 99.95 ? "100" : share.toFixed(share < 10 ? 1 : 0)} %`;
};
const kibibytes = (bytes) => `${(bytes / 1024).toFixed(1)} KiB`;
const times = (count) => (count === 1 ? "once" : `${count} times`);
const visible = (text) => (text === "" ? "(no text)" : text.replaceAll("\n", "↵").replace(/^ | $/g, "␣"));
const wordsOf = (token) =>
  `“${visible(token.text)}”, ${originWords(token)}` +
  (token.logprob === null ? "" : `, ${percent(token.logprob)}`);
