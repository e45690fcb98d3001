// One question with its answers: asked again in other words, answered again, compared.
import { Answer } from "./answer.mjs";
import { isOpen } from "./conversation.mjs";
import { html } from "./html.mjs";
import { say } from "./language.mjs";
import { Component } from "./vendor/preact.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";

export const ALONE = "ar";

// Drawn again only when something of it changes: a long chat has thousands of tokens. What it calls is
// always the latest, since `act` is looked up when a button is pressed.
export class Turn extends Component {
  shouldComponentUpdate(next) {
    return ["turn", "view", "language", "busy", "isLast", "canCompare"].some((name) => next[name] !== this.props[name]);
  }

  render(props) {
    return html`<${Drawn} ...${props} act=${(name, ...values) => this.props.act[name](...values)} />`;
  }
}

function Drawn({ turn, view, busy, isLast, canCompare, act }) {
  const [first, other] = turn.answers;
  const comparable = first.state === "done" && first.preset !== ALONE && !first.figures?.device;
  const actions = [
    isLast &&
      !first.error &&
      html`<button class="button small" disabled=${busy} onClick=${() => act("answerAgain", turn)}>${say("answerAgain")}</button>`,
    canCompare &&
      comparable &&
      !other &&
      html`<button class="button small" disabled=${busy} onClick=${() => act("compare", turn)}>${say("compare")}</button>`,
  ];
  return html`<section aria-label=${say("questionLabel", { question: turn.question })}>
    <${Question} question=${turn.question} busy=${busy} onChange=${(words) => act("askInstead", turn, words)} />
    <div class="answers">
      ${turn.answers.map(
        (answer, index) => html`<${Answer}
          key=${answer.id}
          answer=${answer}
          title=${answer.preset === ALONE ? say("titleAlone") : answer.preset}
          seed=${turn.chosen.seed}
          view=${view}
          other=${index === 0 ? other : null}
          actions=${index === 0 ? actions : null}
          onRetry=${() => !turn.answers.some(isOpen) && act("retry", turn, answer)}
        />`,
      )}
    </div>
  </section>`;
}

function Question({ question, busy, onChange }) {
  const [words, setWords] = useState(null); // null: it is not being changed
  const field = useRef(null);
  const button = useRef(null);
  const isEdited = words !== null;
  const wasEdited = useRef(false);
  useEffect(() => {
    if (isEdited) {
      field.current.focus();
      field.current.setSelectionRange(question.length, question.length);
    } else if (wasEdited.current) {
      button.current?.focus();
    }
    wasEdited.current = isEdited;
  }, [isEdited]);
  if (!isEdited) {
    return html`<div class="asked">
      <p class="question">${question}</p>
      <button ref=${button} class="button small plain" disabled=${busy} onClick=${() => setWords(question)}>${say("edit")}</button>
    </div>`;
  }
  const submit = (event) => {
    event.preventDefault();
    if (!words.trim()) return;
    setWords(null);
    onChange(words.trim());
  };
  const onKeyDown = (event) => {
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      setWords(null);
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return html`<form class="card editing" onSubmit=${submit}>
    <textarea ref=${field} rows="2" aria-label=${say("editLabel")} value=${words}
      onInput=${(event) => setWords(event.target.value)} onKeyDown=${onKeyDown}></textarea>
    <p class="hint">${say("editHint")}</p>
    <div class="row">
      <button class="button main small" disabled=${!words.trim()}>${say("askInstead")}</button>
      <button type="button" class="button small" onClick=${() => setWords(null)}>${say("cancel")}</button>
    </div>
  </form>`;
}
