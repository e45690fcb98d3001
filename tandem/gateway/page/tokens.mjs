// An answer token by token: who made each, how likely it was, and what else might have stood there.
import { isOpen } from "./conversation.mjs";
import { html } from "./html.mjs";
import { percent, say } from "./language.mjs";
import { countsOf, sourceWords } from "./origins.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";

// One stop of the Tab key; arrows move from token to token, as the pointer does.
export function Tokens({ answer }) {
  const [chosen, setChosen] = useState(-1);
  const list = useRef(null);
  const { tokens } = answer;
  const idOf = (index) => `token-${answer.id}-${index}`;
  const onKeyDown = (event) => {
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    let next = null;
    if (event.key in steps) next = Math.max(0, chosen + steps[event.key]);
    if (event.key === "Home") next = 0;
    if (event.key === "End") next = tokens.length - 1;
    if (event.key === "Escape" && chosen >= 0) next = -1;
    if (next === null) return;
    event.preventDefault();
    event.stopPropagation(); // Escape closes the card first, and stops the answer the next time
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
      aria-label=${say("tokensLabel")}
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
          class=${`token ${token.source}${index === chosen ? " chosen" : ""}`}
        >${token.text}</span>`,
      )}${isOpen(answer) && html`<span class="caret" role="presentation"></span>`}
    </div>
    ${chosen >= 0 && tokens[chosen] &&
    html`<${LookedAt} token=${tokens[chosen]} place=${() => document.getElementById(idOf(chosen))} />`}
  </div>`;
}

// A card beside the token.
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
      ${token.logprob !== null && html`<span>${percent(Math.exp(token.logprob))}</span>`}
    </p>
    <p>${sourceWords(token.source)}</p>
    ${token.alternatives.length > 0 &&
    html`<ol class="alternatives">
      ${token.alternatives.map(
        (each) => html`<li class=${each.token === token.text ? "this" : ""}>
          <code>${visible(each.token)}</code>
          <span class="bar"><i style=${{ width: `${100 * Math.exp(each.logprob)}%` }}></i></span>
          <span class="share">${percent(Math.exp(each.logprob))}</span>
        </li>`,
      )}
    </ol>`}
  </div>`;
}

export function Legend({ answer }) {
  const made = countsOf(answer.tokens);
  if (!made.length) return null;
  return html`<ul class="legend" aria-label=${say("legendLabel")}>
    ${made.map(
      ({ source, count }) => html`<li>
        <span class=${`token ${source}`} aria-hidden="true"></span>${sourceWords(source)}${" "}<b>${count}</b>
      </li>`,
    )}
  </ul>`;
}

const visible = (text) =>
  text === "" ? say("noText") : text.replaceAll("\n", "↵").replace(/^ | $/g, "␣");

const wordsOf = (token) =>
  `“${visible(token.text)}”, ${sourceWords(token.source)}` +
  (token.logprob === null ? "" : `, ${percent(Math.exp(token.logprob))}`);
