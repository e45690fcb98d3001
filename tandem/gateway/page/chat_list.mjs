// The chats that this browser keeps: open one, begin another, save it as a file, delete some.
import { html } from "./html.mjs";
import { dateWords, say } from "./language.mjs";
import { MAX_CHATS } from "./chats.mjs";
import { useState } from "./vendor/hooks.mjs";

// `deleted` is the title of what was deleted last, while that can be undone.
export function ChatList({ chats, openId, hasTurns, deleted, act }) {
  return html`<section aria-labelledby="chats-title">
    <h2 id="chats-title" class="unseen">${say("chats")}</h2>
    <button class="button main new" onClick=${act.begin}>${say("newChat")}</button>
    <ul class="chats">
      ${chats.map(
        (chat) => html`<li key=${chat.id} class=${chat.id === openId ? "open" : ""}>
          <button class="chat" aria-current=${chat.id === openId ? "true" : undefined} onClick=${() => act.open(chat.id)}>
            <span>${chat.title}</span><small>${dateWords(chat.savedMs)}</small>
          </button>
          <button class="button small plain remove" aria-label=${say("deleteChat", { title: chat.title })} title=${say("delete")} onClick=${() => act.remove(chat)}>×</button>
        </li>`,
      )}
    </ul>
    <p class="hint" role="status">
      ${deleted && html`${say("deletedChat", { title: deleted })} <button class="button small" onClick=${act.undo}>${say("undo")}</button>`}
    </p>
    ${hasTurns &&
    html`<div class="saving" role="group" aria-label=${say("exportLabel")}>
      <span>${say("exportChat")}</span>
      <button class="button small" onClick=${() => act.save("md")}>Markdown</button>
      <button class="button small" onClick=${() => act.save("json")}>JSON</button>
    </div>`}
    <p class="hint">${say("chatsStay", { most: MAX_CHATS })}</p>
    ${chats.length > 1 && html`<${DeleteAll} removeAll=${act.removeAll} />`}
  </section>`;
}

// Asks back by its own words: a second press within the same look at it.
function DeleteAll({ removeAll }) {
  const [isSure, setIsSure] = useState(false);
  const onClick = () => {
    if (isSure) removeAll();
    setIsSure(!isSure);
  };
  return html`<button class=${isSure ? "button small alarm" : "button small"} onClick=${onClick} onBlur=${() => setIsSure(false)}>
    ${say(isSure ? "deleteAllSure" : "deleteAll")}
  </button>`;
}
