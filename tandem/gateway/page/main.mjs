// The page: a conversation, and what it took.
import { ApiError, features, model as askModel, setKey, stream } from "./api.mjs";
import { Answer } from "./answer.mjs";
import { Controls, Documents, Link } from "./controls.mjs";
import { isOpen, messagesOf, newAnswer, withAnswer, withChunk } from "./conversation.mjs";
import { html } from "./html.mjs";
import { render } from "./vendor/preact.mjs";
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.mjs";

const ALONE = "ar";
// Where nothing is known of the model: at 1 small models ramble.
const CHAT_TEMPERATURE = 0.7;
const SEED_BELOW = 2 ** 32;
const EXAMPLES = [
  "Tom picks 12 apples in the morning and 8 in the afternoon. How many apples does he have?",
  "What is a list in Python?",
];
const FIRST_CHOICES = {
  preset: "",
  objective: "",
  temperature: "",
  seed: "",
  maxTokens: "128",
  lostCloud: "wait",
  logprobs: true,
};

function Page() {
  const [served, setServed] = useState(null);
  const [able, setAble] = useState({});
  const [needsKey, setNeedsKey] = useState(false);
  const [trouble, setTrouble] = useState("");
  const [chosen, setChosen] = useState(FIRST_CHOICES);
  const [turns, setTurns] = useState([]);
  const stopping = useRef(null);
  const nextId = useRef(0);
  const end = useRef(null);
  const endedAt = useRef(0); // how far down the conversation reached, in pixels of the page

  const report = useCallback((error) => {
    if (error.status === 401 || error.status === 403) setNeedsKey(true);
    setTrouble(error.message);
  }, []);

  const begin = useCallback(async () => {
    try {
      setAble(await features());
      const model = await askModel();
      setServed(model);
      const auto = model.tandem.presets.includes("auto") ? "auto" : model.tandem.default_preset;
      const temperature = String(model.tandem.default_sampling?.temperature ?? CHAT_TEMPERATURE);
      setChosen((before) => ({
        ...before,
        preset: before.preset || auto,
        temperature: before.temperature || temperature,
      }));
      setNeedsKey(false);
      setTrouble("");
    } catch (error) {
      report(error);
    }
  }, []);
  useEffect(() => {
    begin();
  }, []);

  const busy = turns.some((turn) => turn.answers.some(isOpen));

  // Streams one answer into the conversation.
  const run = async (answer, asking) => {
    const stop = new AbortController();
    stopping.current = stop;
    const change = (how) => setTurns((all) => withAnswer(all, answer.id, how));
    const over = (state, error = "") =>
      change((each) => ({ ...each, state, error, endedMs: performance.now() }));
    try {
      for await (const choice of stream(asking, stop.signal)) {
        const nowMs = performance.now();
        change((each) => withChunk(each, choice, nowMs));
      }
      change((each) => (isOpen(each) ? { ...each, state: "done", endedMs: performance.now() } : each));
    } catch (error) {
      if (error.name === "AbortError") {
        over("stopped");
      } else {
        over("failed", error.message);
        if (error.status === 401) setNeedsKey(true);
        if (!(error instanceof ApiError)) throw error;
      }
    }
  };

  const askingOf = (turn, preset, seed) => {
    const tellsLogprobs = turn.chosen.logprobs && served.tandem.logprobs.includes(preset);
    const { objective } = turn.chosen;
    const weighs = objective !== "" && served.tandem.objectives?.includes(preset);
    return {
      model: served.id,
      messages: turn.messages,
      seed,
      temperature: Number(turn.chosen.temperature),
      max_tokens: Number(turn.chosen.maxTokens),
      ...(tellsLogprobs ? { logprobs: true, top_logprobs: 5 } : {}),
      tandem: {
        preset,
        provenance: true,
        token_texts: true,
        rounds: true,
        lost_cloud: turn.chosen.lostCloud,
        ...(weighs ? { objective: Number(objective) || objective } : {}),
      },
    };
  };

  const say = (question) => {
    const seed = chosen.seed === "" ? Math.floor(Math.random() * SEED_BELOW) : Number(chosen.seed);
    const answer = newAnswer((nextId.current += 1), chosen.preset, seed);
    const messages = messagesOf(turns, question);
    const turn = { id: answer.id, question, messages, chosen, answers: [answer] };
    endedAt.current = 0;
    setTurns([...turns, turn]);
    run(answer, askingOf(turn, chosen.preset, seed));
  };

  const again = (turn, preset, seed) => {
    const answer = newAnswer((nextId.current += 1), preset, seed);
    setTurns((all) =>
      all.map((each) => (each.id === turn.id ? { ...each, answers: [each.answers[0], answer] } : each)),
    );
    run(answer, askingOf(turn, preset, seed));
  };

  const retry = (turn, failed) => {
    const answer = newAnswer((nextId.current += 1), failed.preset, failed.seed);
    setTurns((all) => withAnswer(all, failed.id, () => answer));
    run(answer, askingOf(turn, turn.chosen.preset, failed.seed));
  };

  // What grows stays in view, unless the person has gone up to read.
  useEffect(() => {
    if (!turns.length) return;
    if (endedAt.current <= scrollY + innerHeight) end.current.scrollIntoView({ block: "end" });
    endedAt.current = scrollY + end.current.getBoundingClientRect().bottom;
  }, [turns]);

  const actionsOf = (turn) => {
    const [first, other] = turn.answers;
    const comparable = first.state === "done" && first.preset !== ALONE && !first.figures?.device;
    if (!comparable || other || !served.tandem.presets.includes(ALONE)) return null;
    return html`<div>
      <button class="button small" disabled=${busy} onClick=${() => again(turn, ALONE, first.seed)}>
        Run again with the cloud alone, same seed
      </button>
    </div>`;
  };
  const titleOf = (answer) => (answer.preset === ALONE ? "ar: the cloud alone" : answer.preset);

  return html`<div class="frame">
    <header class="top">
      <img src="/page/icon.svg" alt="" />
      <h1>Tandem</h1>
      ${served &&
      html`<p class="pair"><b>${served.tandem.draft}</b> drafts on the edge, <b>${served.id}</b> verifies in the cloud</p>`}
    </header>
    <main class="talk">
      <div class="turns">
        ${trouble && !needsKey &&
        html`<div class="trouble" role="alert">
          <span>${trouble}</span><button class="button small" onClick=${begin}>Try again</button>
        </div>`}
        ${turns.length === 0 &&
        html`<div class="welcome">
          <h2>See who writes each word</h2>
          <p>A small model on the edge drafts, a large one in the cloud verifies. Every token of an answer shows who made it; point at one, or move to it with the arrow keys, to see how likely it was.</p>
          <ul>
            ${EXAMPLES.map(
              (example) => html`<li><button class="button" disabled=${!served || busy} onClick=${() => say(example)}>${example}</button></li>`,
            )}
          </ul>
        </div>`}
        ${turns.map(
          (turn) => html`<section key=${turn.id} aria-label=${`Question: ${turn.question}`}>
            <p class="question">${turn.question}</p>
            <div class="answers">
              ${turn.answers.map(
                (answer, index) => html`<${Answer}
                  key=${answer.id}
                  answer=${answer}
                  title=${titleOf(answer)}
                  other=${index === 0 ? turn.answers[1] : null}
                  actions=${index === 0 ? actionsOf(turn) : null}
                  onRetry=${() => retry(turn, answer)}
                />`,
              )}
            </div>
          </section>`,
        )}
        <div class="end" ref=${end}></div>
      </div>
      <${Ask} ready=${served !== null} busy=${busy} say=${say} stop=${() => stopping.current?.abort()} />
    </main>
    <aside class="side" aria-label="Settings">
      ${served && html`<${Controls} model=${served} chosen=${chosen} choose=${(change) => setChosen({ ...chosen, ...change })} />`}
      ${served && able.documents && html`<${Documents} usable=${served.tandem.documents.includes(chosen.preset)} />`}
      ${served && able.link && html`<${Link} report=${report} />`}
    </aside>
    ${needsKey && html`<${KeyDialog} refused=${trouble} onKey=${(key) => { setKey(key); begin(); }} />`}
  </div>`;
}

function Ask({ ready, busy, say, stop }) {
  const [words, setWords] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (busy || !ready || !words.trim()) return;
    say(words.trim());
    setWords("");
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return html`<div class="ask">
    <form class="card" onSubmit=${submit}>
      <label class="unseen" for="words">Your question</label>
      <textarea id="words" rows="1" placeholder="Ask something" value=${words}
        onInput=${(event) => setWords(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      ${busy
        ? html`<button type="button" class="button" onClick=${stop}>Stop</button>`
        : html`<button class="button main" disabled=${!ready || !words.trim()}>Ask</button>`}
    </form>
  </div>`;
}

function KeyDialog({ refused, onKey }) {
  const dialog = useRef(null);
  const [key, setOwn] = useState("");
  useEffect(() => {
    if (!dialog.current.open) dialog.current.showModal();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    onKey(key.trim());
  };
  return html`<dialog ref=${dialog} aria-labelledby="key-title" onCancel=${(event) => event.preventDefault()}>
    <form onSubmit=${submit}>
      <h2 id="key-title">This server asks for a key</h2>
      <label class="field"><span>Key, as <code>tandem keys</code> made it; kept for this tab alone</span>
        <input type="password" autocomplete="off" required value=${key} onInput=${(event) => setOwn(event.target.value)} />
      </label>
      <p class="hint" role="alert">${refused}</p>
      <div class="row"><button class="button main">Use this key</button></div>
    </form>
  </dialog>`;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
