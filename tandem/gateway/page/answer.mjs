// One answer: its text as Markdown or its tokens by who made them, and what it took.
import { isOpen } from "./conversation.mjs";
import { CopyButton } from "./copying.mjs";
import { Figures, Notes, PlainLine } from "./figures.mjs";
import { html } from "./html.mjs";
import { number, say } from "./language.mjs";
import { Markdown } from "./markdown.mjs";
import { Rounds } from "./rounds.mjs";
import { Legend, Tokens } from "./tokens.mjs";
import { explained } from "./troubles.mjs";
import { useEffect, useState } from "./vendor/hooks.mjs";

const SILENT_MS = 1500;
const TIMES_AS_LONG = 3; // as this answer's pieces have taken

// `view` is "text" or "tokens"; `seed` is one that was asked for; `actions` are further buttons below
// the answer.
export function Answer({ answer, title, seed, view, other, actions, onRetry }) {
  const nowMs = useNow(isOpen(answer));
  const elapsedMs = (answer.endedMs ?? nowMs) - answer.beganMs;
  const silentMs = nowMs - answer.heardMs;
  const saysNothing = silentMs > Math.max(SILENT_MS, TIMES_AS_LONG * answer.longestGapMs);
  const inTokens = view === "tokens" && (answer.tokens.length > 0 || isOpen(answer));
  return html`<article class="card answer" aria-busy=${isOpen(answer)}>
    <header>
      <h2>${title}</h2>
      ${seed && html`<span>${say("seed")} ${seed}</span>`}
      <span class="clock" aria-label=${say("time")}>${number(Math.max(0, elapsedMs) / 1e3, 2)} s</span>
    </header>
    ${inTokens ? html`<p class="unseen">${answer.text}</p><${Tokens} answer=${answer} />` : html`<${Text} answer=${answer} />`}
    ${isOpen(answer) &&
    saysNothing &&
    html`<p class="note" role="status">${say("silent", { seconds: Math.floor(silentMs / 1e3) })}</p>`}
    ${answer.error && html`<${Trouble} trouble=${answer.error} onRetry=${onRetry} />`}
    ${answer.state === "stopped" && html`<p class="note">${say("stopped")}</p>`}
    ${inTokens ? html`<${Legend} answer=${answer} /><${Rounds} rounds=${answer.rounds} />` : html`<${Shares} answer=${answer} />`}
    ${answer.figures && html`<${PlainLine} figures=${answer.figures} other=${other} />`}
    ${answer.figures && inTokens && html`<${Figures} figures=${answer.figures} />`}
    ${answer.figures && html`<${Notes} answer=${answer} other=${other} />`}
    ${!isOpen(answer) &&
    html`<div class="actions">
      ${answer.text && html`<${CopyButton} text=${answer.text} label=${say("copyAnswer")} />`}
      ${actions}
    </div>`}
  </article>`;
}

function Text({ answer }) {
  if (!answer.text && !answer.thinking && !isOpen(answer)) return null;
  return html`
    ${answer.thinking &&
    html`<details class="thinking" open=${isOpen(answer) && !answer.text}>
      <summary>${say("thinking")}</summary>
      <p>${answer.thinking.trim()}</p>
    </details>`}
    <div class="written">
      ${answer.text && html`<${Markdown} text=${answer.text} code=${Code} grows=${isOpen(answer)} />`}
      ${isOpen(answer) && html`<span class="caret"></span>`}
    </div>`;
}

// Program text with its language and a button that copies it, once it is complete.
function Code({ language, text, isWritten }) {
  return html`<div class="code">
    <div class="bar">
      <span>${language}</span>
      ${!isWritten && html`<${CopyButton} text=${text} label=${say("copyCode")} />`}
    </div>
    <pre tabindex="0" role="group" aria-label=${say("codeLabel")}><code>${text}</code></pre>
  </div>`;
}

// Who made the answer, as a strip of one colour a token. The plain line says it in words.
function Shares({ answer }) {
  if (!answer.tokens.length) return null;
  return html`<div class="shares" aria-hidden="true">
    ${runsOf(answer.tokens).map(({ source, count }, index) => html`<i key=${index} class=${`token ${source}`} style=${{ flexGrow: count }}></i>`)}
  </div>`;
}

function runsOf(tokens) {
  const runs = [];
  for (const token of tokens) {
    if (runs.at(-1)?.source === token.source) runs.at(-1).count += 1;
    else runs.push({ source: token.source, count: 1 });
  }
  return runs;
}

export function Trouble({ trouble, onRetry }) {
  const { words, said } = explained(trouble);
  return html`<div class="trouble" role="alert">
    <span>${words}</span>
    <button class="button small" onClick=${onRetry}>${say("tryAgain")}</button>
    ${said &&
    html`<details>
      <summary>${say("serverSaid")}</summary>
      <code>${said}</code>
    </details>`}
  </div>`;
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
