// Chats that this browser keeps: one entry of its local storage each. At most MAX_CHATS, and no more
// than MAX_CHARACTERS together, since browsers give a page some five million; the oldest go first, and
// of one chat that is very large only what was said is kept. Nothing of them is on the server.
import { loadedAnswer, packedAnswer } from "./conversation.mjs";

export const MAX_CHATS = 50;
export const MAX_CHARACTERS = 4_000_000;
const MAX_CHARACTERS_OF_ONE = 1_000_000;
const PREFIX = "tandem.chat.";
const OPEN = "tandem.open-chat"; // of this tab
const VERSION = 1;
const TITLE_LENGTH = 60;

export const newChat = () => ({
  id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 10)}`,
  turns: [],
});

export const titleOf = (chat) => {
  const words = (chat.turns[0]?.question ?? "").replace(/\s+/g, " ").trim();
  return words.length > TITLE_LENGTH ? `${words.slice(0, TITLE_LENGTH - 1)}…` : words;
};

// { id, title, savedMs } of each chat, the newest first.
export function listedChats() {
  const found = [];
  try {
    for (let index = 0; index < localStorage.length; index += 1) {
      const key = localStorage.key(index);
      if (!key.startsWith(PREFIX)) continue;
      const text = localStorage.getItem(key);
      const entry = entryOf(key.slice(PREFIX.length), text);
      if (entry) found.push(entry);
    }
  } catch {
    return []; // this browser keeps nothing
  }
  return found.sort((one, other) => other.savedMs - one.savedMs);
}

function entryOf(id, text) {
  try {
    const { version, title, savedMs } = JSON.parse(text);
    if (version !== VERSION) return null;
    return { id, title: String(title), savedMs: Number(savedMs), characters: text.length };
  } catch {
    return null;
  }
}

// Keeps the chat, and returns whether this browser has room for it.
export function keepChat(chat) {
  if (!chat.turns.length) return true;
  const packed = (withTokens) =>
    JSON.stringify({
      version: VERSION,
      title: titleOf(chat),
      savedMs: Date.now(),
      turns: chat.turns.map((turn) => ({
        question: turn.question,
        chosen: turn.chosen,
        answers: turn.answers.map((answer) => packedAnswer(answer, withTokens)),
      })),
    });
  let text = packed(true);
  if (text.length > MAX_CHARACTERS_OF_ONE) text = packed(false);
  const others = listedChats().filter((each) => each.id !== chat.id);
  let held = others.reduce((sum, each) => sum + each.characters, text.length);
  const removeOldest = () => {
    const oldest = others.pop();
    removeChat(oldest.id);
    held -= oldest.characters;
  };
  while (others.length && (others.length >= MAX_CHATS || held > MAX_CHARACTERS)) removeOldest();
  for (;;) {
    try {
      localStorage.setItem(PREFIX + chat.id, text);
      return true;
    } catch (error) {
      const isFull = error instanceof DOMException && error.name !== "SecurityError";
      if (!isFull) return false;
      if (others.length) removeOldest();
      else if (text !== (text = packed(false))) continue;
      else return false;
    }
  }
}

// The chat with this id, or null where there is none that can be read. `nextId` numbers its answers.
export function loadChat(id, nextId) {
  try {
    const found = JSON.parse(localStorage.getItem(PREFIX + id));
    if (found?.version !== VERSION) return null;
    const turns = found.turns.map((turn) => {
      const answers = turn.answers.slice(0, 2).map((answer) => loadedAnswer(answer, nextId()));
      return { id: answers[0].id, question: String(turn.question), chosen: turn.chosen, answers };
    });
    return { id, turns };
  } catch {
    return null;
  }
}

// Takes the chat away and returns its text, with which it can be put back.
export function removeChat(id) {
  try {
    const text = localStorage.getItem(PREFIX + id);
    localStorage.removeItem(PREFIX + id);
    return text;
  } catch {
    return null;
  }
}

export function putBack(id, text) {
  try {
    localStorage.setItem(PREFIX + id, text);
  } catch {
    // no room any more
  }
}

export const isChatKey = (key) => key === null || key.startsWith(PREFIX);

// Which chat this tab shows again after it was loaded anew.
export function openChat() {
  try {
    return sessionStorage.getItem(OPEN);
  } catch {
    return null;
  }
}

export function setOpenChat(id) {
  try {
    sessionStorage.setItem(OPEN, id);
  } catch {
    // this browser keeps nothing
  }
}
