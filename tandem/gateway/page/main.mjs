// The page: a conversation, those before it, and how answers are made.
import { ApiError, features, hasKey, model as askModel, setKey, stream } from "./api.mjs";
import { Trouble } from "./answer.mjs";
import { ChatList } from "./chat_list.mjs";
import {
  isChatKey,
  keepChat,
  listedChats,
  loadChat,
  newChat,
  openChat,
  putBack,
  removeChat,
  setOpenChat,
  titleOf,
} from "./chats.mjs";
import { inTurns } from "./comparing.mjs";
import { Controls } from "./controls.mjs";
import { isOpen, messagesOf, newAnswer, withAnswer, withChunk } from "./conversation.mjs";
import { saveFile } from "./copying.mjs";
import { Documents } from "./documents.mjs";
import { asJson, asMarkdown, fileName } from "./exporting.mjs";
import { html } from "./html.mjs";
import { keep, kept } from "./kept.mjs";
import { LANGUAGES, currentLanguage, say, setLanguage } from "./language.mjs";
import { Panel, useWidth } from "./panel.mjs";
import { ALONE, Turn } from "./turn.mjs";
import { explained, troubleOf } from "./troubles.mjs";
import { render } from "./vendor/preact.mjs";
import { useCallback, useEffect, useRef, useState } from "./vendor/hooks.mjs";

// Where nothing is known of the model: at 1 small models ramble.
const CHAT_TEMPERATURE = 0.7;
const SEED_BELOW = 2 ** 32;
const MOST_TOKENS = 512; // of an answer, unless it is set otherwise or the context is short
const EXAMPLES = [
  "Tom picks 12 apples in the morning and 8 in the afternoon. How many apples does he have?",
  "What is a list in Python?",
];
const TOY = "demo-target"; // the demo pair's model, by its name
const SETTINGS = "tandem.settings";
const VIEW = "tandem.view";
const FIRST_CHOICES = {
  preset: "",
  temperature: "",
  seed: "",
  maxTokens: "",
  lostCloud: "wait",
  system: "",
  logprobs: true,
};

// What was chosen before, where this page still knows it. A seed is for one question or a few.
function keptChoices() {
  const found = kept(SETTINGS, {}) ?? {};
  const known = Object.keys(FIRST_CHOICES).filter((name) => typeof found[name] === typeof FIRST_CHOICES[name]);
  return { ...FIRST_CHOICES, ...Object.fromEntries(known.map((name) => [name, found[name]])), seed: "" };
}

function Page() {
  const [served, setServed] = useState(null);
  const [able, setAble] = useState({});
  const [needsKey, setNeedsKey] = useState(false);
  const [trouble, setTrouble] = useState(null);
  const [chosen, setChosen] = useState(keptChoices);
  const [view, setView] = useState(() => (kept(VIEW, "text") === "tokens" ? "tokens" : "text"));
  const [language, setLanguageHere] = useState(currentLanguage);
  const nextId = useRef(0);
  const numbered = () => (nextId.current += 1);
  const [chat, setChat] = useState(() => loadChat(openChat(), numbered) ?? newChat());
  const [chats, setChats] = useState(listedChats);
  const [isKept, setIsKept] = useState(true);
  const [deleted, setDeleted] = useState(null);
  const [opened, setOpened] = useState(""); // the panel that is shown as a dialog
  const stopping = useRef(null);
  const end = useRef(null);
  const words = useRef(null);
  const endedAt = useRef(0); // how far down the conversation reached, in pixels of the page
  const latest = useRef(chat);
  const keptTurns = useRef(chat.turns);
  latest.current = chat;
  const hasChatsBeside = useWidth("75rem");
  const hasSettingsBeside = useWidth("60rem");
  const { turns } = chat;
  const busy = turns.some((turn) => turn.answers.some((answer) => isOpen(answer) || answer.isComparing));
  const setTurns = (change) =>
    setChat((all) => {
      const changed = change(all.turns);
      return changed === all.turns ? all : { ...all, turns: changed };
    });

  const begin = useCallback(async () => {
    try {
      setAble(await features());
      const model = await askModel();
      setServed(model);
      const { presets, default_preset: usual, default_sampling: sampling, context_length: context } = model.tandem;
      const auto = presets.includes("auto") ? "auto" : usual;
      const most = String(Math.min(MOST_TOKENS, Math.max(16, Math.floor((context || 4 * MOST_TOKENS) / 4))));
      setChosen((before) => ({
        ...before,
        preset: presets.includes(before.preset) ? before.preset : auto,
        temperature: before.temperature || String(sampling?.temperature ?? CHAT_TEMPERATURE),
        maxTokens: before.maxTokens || most,
      }));
      setNeedsKey(false);
      setTrouble(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setNeedsKey(error.status === 401 || error.status === 403);
      setTrouble(troubleOf(error));
    }
  }, []);
  useEffect(() => {
    begin();
  }, []);
  const report = useCallback((error) => {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) setNeedsKey(true);
    setTrouble(troubleOf(error));
  }, []);

  const choose = (change) => {
    setChosen({ ...chosen, ...change });
    // Only what the person chose: another model has other settings of its makers.
    keep(SETTINGS, { ...(kept(SETTINGS, {}) ?? {}), ...change });
  };
  const show = (name) => {
    setView(name);
    keep(VIEW, name);
  };
  const speak = (name) => {
    setLanguage(name);
    setLanguageHere(name);
  };
  useEffect(() => {
    document.documentElement.lang = currentLanguage();
  }, []);

  // --- answers ------------------------------------------------------------------------------------

  // Streams one answer into the conversation, and returns its figures.
  const run = async (answer, asking, stop = new AbortController()) => {
    stopping.current = stop;
    let figures = null;
    const change = (how) => setTurns((all) => withAnswer(all, answer.id, how));
    const over = (state, error = null) =>
      change((each) => ({ ...each, state, error, endedMs: performance.now() }));
    try {
      for await (const choice of stream(asking, stop.signal)) {
        const nowMs = performance.now();
        change((each) => withChunk(each, choice, nowMs));
        if (choice.finish_reason) figures = choice.tandem;
      }
      change((each) => (isOpen(each) ? { ...each, state: "done", endedMs: performance.now() } : each));
    } catch (error) {
      if (error.name === "AbortError") {
        over("stopped");
      } else {
        over("failed", troubleOf(error));
        if (error.status === 401) setNeedsKey(true);
        if (!(error instanceof ApiError)) throw error;
      }
    }
    return figures;
  };

  const askingOf = (turn, before, preset, seed) => {
    const asked = { ...FIRST_CHOICES, ...turn.chosen };
    const tellsLogprobs = asked.logprobs && served.tandem.logprobs.includes(preset);
    return {
      model: served.id,
      messages: messagesOf(before, turn.question, asked.system),
      seed,
      temperature: Number(asked.temperature),
      max_tokens: Number(asked.maxTokens),
      ...(tellsLogprobs ? { logprobs: true, top_logprobs: 5 } : {}),
      tandem: {
        preset,
        provenance: true,
        token_texts: true,
        rounds: true,
        lost_cloud: asked.lostCloud,
      },
    };
  };
  const before = (turn) => turns.slice(0, turns.findIndex((each) => each.id === turn.id));
  const newSeed = () =>
    chosen.seed === "" ? Math.floor(Math.random() * SEED_BELOW) : Number(chosen.seed);

  // Asks after the turns that are to stay.
  const ask = (question, staying = turns) => {
    const answer = newAnswer(numbered(), chosen.preset, newSeed());
    const turn = { id: answer.id, question, chosen, answers: [answer] };
    endedAt.current = 0;
    setTurns(() => [...staying, turn]);
    run(answer, askingOf(turn, staying, answer.preset, answer.seed));
  };

  const act = {
    askInstead: (turn, question) => ask(question, before(turn)),
    answerAgain: (turn) => ask(turn.question, before(turn)),
    // The first answer alone is shown. Nothing is remembered from one answer to the next.
    compare: async (turn) => {
      const [first] = turn.answers;
      const other = { ...newAnswer(numbered(), ALONE, first.seed), isComparing: true };
      const change = (how) => setTurns((all) => withAnswer(all, other.id, how));
      setTurns((all) => all.map((each) => (each.id === turn.id ? { ...each, answers: [first, other] } : each)));
      const stop = new AbortController();
      let isShown = false;
      const answerOf = async (who) => {
        const asked = askingOf(turn, before(turn), who === "own" ? first.preset : ALONE, first.seed);
        const asking = { ...asked, tandem: { ...asked.tandem, no_memory: true } };
        if (!isShown) {
          isShown = true;
          return run(other, asking, stop);
        }
        let figures = null;
        for await (const choice of stream(asking, stop.signal)) if (choice.finish_reason) figures = choice.tandem;
        return figures;
      };
      try {
        await inTurns(answerOf, (measured) => change((each) => ({ ...each, turns: [...each.turns, measured] })));
      } catch (error) {
        if (error.name !== "AbortError") report(error);
      } finally {
        change((each) => ({ ...each, isComparing: false }));
      }
    },
    // As it was asked, but with what is set now: it may be a setting that was wrong.
    retry: (turn, failed) => {
      const isFirst = turn.answers[0].id === failed.id;
      const answer = newAnswer(numbered(), isFirst ? chosen.preset : failed.preset, failed.seed);
      const again = isFirst ? { ...turn, chosen } : turn;
      setTurns((all) =>
        withAnswer(all, failed.id, () => answer).map((each) => (each.id === turn.id ? { ...each, chosen: again.chosen } : each)),
      );
      run(answer, askingOf(again, before(turn), answer.preset, answer.seed));
    },
  };

  const stop = () => stopping.current?.abort();
  useEffect(() => {
    const onKeyDown = (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
      stop();
    };
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  }, []);

  // What grows stays in view, unless the person has gone up to read.
  useEffect(() => {
    if (!turns.length) return;
    if (endedAt.current <= scrollY + innerHeight) end.current.scrollIntoView({ block: "end" });
    endedAt.current = scrollY + end.current.getBoundingClientRect().bottom;
  }, [turns, view]);

  // --- chats --------------------------------------------------------------------------------------

  const keepNow = (what) => {
    keptTurns.current = what.turns;
    setIsKept(keepChat(what));
    setChats(listedChats());
  };
  // A question is kept when it is asked, and its answer when that has ended.
  useEffect(() => {
    setOpenChat(chat.id);
    document.title = turns.length ? `${titleOf(chat)} – Tandem` : "Tandem";
    const isNew = turns.length !== keptTurns.current.length;
    if (turns !== keptTurns.current && turns.length && (isNew || !busy)) keepNow(chat);
  }, [chat]);
  useEffect(() => {
    const onLeave = () => {
      if (latest.current.turns !== keptTurns.current) keepChat(latest.current);
    };
    const onStorage = (event) => isChatKey(event.key) && setChats(listedChats()); // of another tab
    addEventListener("pagehide", onLeave);
    addEventListener("storage", onStorage);
    return () => {
      removeEventListener("pagehide", onLeave);
      removeEventListener("storage", onStorage);
    };
  }, []);

  const changeTo = (next) => {
    stop();
    if (turns !== keptTurns.current) keepNow(chat);
    keptTurns.current = next.turns;
    endedAt.current = 0;
    setChat(next);
    setOpened("");
    words.current?.focus();
  };
  const onChats = {
    begin: () => changeTo(newChat()),
    open: (id) => {
      const found = id === chat.id ? null : loadChat(id, numbered);
      if (found) changeTo(found);
      setOpened("");
      setChats(listedChats());
    },
    remove: ({ id, title }) => {
      if (id === chat.id) {
        stop();
        const next = newChat();
        keptTurns.current = next.turns;
        setChat(next);
      }
      setDeleted({ id, title, text: removeChat(id) });
      setChats(listedChats());
    },
    undo: () => {
      putBack(deleted.id, deleted.text);
      setDeleted(null);
      setChats(listedChats());
    },
    removeAll: () => {
      stop();
      for (const each of chats) removeChat(each.id);
      const next = newChat();
      keptTurns.current = next.turns;
      setChat(next);
      setDeleted(null);
      setChats(listedChats());
    },
    save: (extension) => {
      const write = extension === "md" ? asMarkdown : asJson;
      const type = extension === "md" ? "text/markdown" : "application/json";
      saveFile(fileName(chat, extension), type, write(chat, served?.id ?? "", Date.now()));
    },
  };

  const canCompare = Boolean(served?.tandem.presets.includes(ALONE));
  return html`<div class="frame">
    <header class="top">
      <img src="page/icon.svg" alt="" />
      <h1>Tandem</h1>
      ${served && html`<p class="pair"><b>${served.tandem.draft}</b> ${say("draftsOnEdge")} <b>${served.id}</b> ${say("verifiesInCloud")}</p>`}
      <div class="tools">
        <fieldset class="views">
          <legend class="unseen">${say("view")}</legend>
          ${["text", "tokens"].map(
            (name) => html`<label><input type="radio" name="view" value=${name} checked=${view === name} onChange=${() => show(name)} /><span>${say(`view-${name}`)}</span></label>`,
          )}
        </fieldset>
        ${!hasChatsBeside && html`<button class="button small" aria-haspopup="dialog" onClick=${() => setOpened("chats")}>${say("chats")}</button>`}
        ${!hasSettingsBeside && html`<button class="button small" aria-haspopup="dialog" onClick=${() => setOpened("settings")}>${say("settingsButton")}</button>`}
      </div>
    </header>
    <${Panel} name="history" label=${say("chats")} isBeside=${hasChatsBeside} isOpen=${opened === "chats"} close=${() => setOpened("")}>
      <${ChatList} chats=${chats} openId=${chat.id} hasTurns=${turns.length > 0} deleted=${deleted?.title} act=${onChats} />
    <//>
    <main class="talk">
      <div class="turns">
        ${trouble && !needsKey && html`<${Trouble} trouble=${trouble} onRetry=${begin} />`}
        ${served?.id === TOY && html`<p class="note" role="note">${say("toyAnswers")}</p>`}
        ${turns.length === 0 &&
        html`<div class="welcome">
          <h2>${say("welcomeTitle")}</h2>
          <p>${say("welcomeWords")}</p>
          <ul>
            ${EXAMPLES.map(
              (example) => html`<li><button class="button" lang="en" disabled=${!served || busy} onClick=${() => ask(example)}>${example}</button></li>`,
            )}
          </ul>
        </div>`}
        ${turns.map(
          (turn, index) => html`<${Turn}
            key=${turn.id}
            turn=${turn}
            view=${view}
            language=${language}
            busy=${busy || !served}
            isLast=${index === turns.length - 1}
            canCompare=${canCompare}
            act=${act}
          />`,
        )}
        ${!isKept && html`<p class="note" role="status">${say("chatNotKept")}</p>`}
        <div class="end" ref=${end}></div>
      </div>
      <${Ask} field=${words} ready=${served !== null} busy=${busy} ask=${ask} stop=${stop} />
    </main>
    <${Panel} name="side" label=${say("settings")} isBeside=${hasSettingsBeside} isOpen=${opened === "settings"} close=${() => setOpened("")}>
      ${served && html`<${Controls} model=${served} chosen=${chosen} choose=${choose} />`}
      ${served && able.documents && html`<${Documents} usable=${served.tandem.documents.includes(chosen.preset)} />`}
      <label class="field tongue"><span>${say("language")}</span>
        <select value=${language} onInput=${(event) => speak(event.target.value)}>
          ${Object.entries(LANGUAGES).map(([name, own]) => html`<option value=${name} lang=${name}>${own}</option>`)}
        </select>
      </label>
    <//>
    ${needsKey && html`<${KeyDialog} trouble=${trouble} onKey=${(key) => { setKey(key); begin(); }} />`}
  </div>`;
}

function Ask({ field, ready, busy, ask, stop }) {
  const [words, setWords] = useState("");
  const submit = (event) => {
    event.preventDefault();
    if (busy || !ready || !words.trim()) return;
    ask(words.trim());
    setWords("");
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  const onStop = () => {
    stop();
    field.current.focus(); // the button goes
  };
  return html`<div class="ask">
    <form class="card" onSubmit=${submit}>
      <label class="unseen" for="words">${say("yourQuestion")}</label>
      <textarea id="words" ref=${field} rows="1" placeholder=${say("askSomething")} value=${words}
        onInput=${(event) => setWords(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      ${busy
        ? html`<button type="button" class="button" onClick=${onStop}>${say("stop")}</button>`
        : html`<button class="button main" disabled=${!ready || !words.trim()}>${say("ask")}</button>`}
    </form>
    <p class="hint keys">${say("keysHint")}</p>
  </div>`;
}

function KeyDialog({ trouble, onKey }) {
  const dialog = useRef(null);
  const [key, setOwn] = useState("");
  useEffect(() => {
    if (!dialog.current.open) dialog.current.showModal();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    onKey(key.trim());
  };
  return html`<dialog class="key" ref=${dialog} aria-labelledby="key-title" onCancel=${(event) => event.preventDefault()}>
    <form onSubmit=${submit}>
      <h2 id="key-title">${say("keyTitle")}</h2>
      <label class="field"><span>${say("keyLabel")}</span>
        <input type="password" autocomplete="off" required value=${key} onInput=${(event) => setOwn(event.target.value)} />
      </label>
      <p class="hint" role="alert">${trouble && hasKey() ? explained(trouble).words : ""}</p>
      <div class="row"><button class="button main">${say("useKey")}</button></div>
    </form>
  </dialog>`;
}

const root = document.getElementById("page");
root.replaceChildren();
render(html`<${Page} />`, root);
