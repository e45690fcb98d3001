// A chat as a file: Markdown for people, JSON for programs.
import { messagesOf } from "./conversation.mjs";
import { titleOf } from "./chats.mjs";
import { dateWords, say } from "./language.mjs";

export function asMarkdown(chat, model, nowMs) {
  const { system } = systemOf(chat);
  const head = [`# ${titleOf(chat)}`, `*${model}, ${dateWords(nowMs)}*`];
  if (system) head.push(`**${say("systemPrompt")}:** ${system}`);
  const said = chat.turns.flatMap((turn) => [
    `## ${say("exportQuestion")}`,
    turn.question,
    ...turn.answers.flatMap((answer) => [
      `## ${say("exportAnswer")} (${answer.preset}, ${say("seed")} ${answer.seed})`,
      answer.text,
    ]),
  ]);
  return `${[...head, ...said].join("\n\n")}\n`;
}

// `messages` are those of an API request that goes on with this chat; `answers` say how each was made.
export function asJson(chat, model, nowMs) {
  const { system } = systemOf(chat);
  const told = {
    format: "tandem-chat",
    version: 1,
    title: titleOf(chat),
    model,
    exported: new Date(nowMs).toISOString(),
    messages: messagesOf(chat.turns, "", system).slice(0, -1),
    answers: chat.turns.flatMap((turn, index) =>
      turn.answers.map(({ preset, seed, text, thinking, state, figures }) => ({
        question: index,
        preset,
        seed,
        text,
        ...(thinking ? { thinking } : {}),
        state,
        figures,
      })),
    ),
  };
  return `${JSON.stringify(told, null, 2)}\n`;
}

export const fileName = (chat, extension) => {
  const words = titleOf(chat).normalize("NFKD").replace(/[^\w]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40);
  return `${words || "chat"}.${extension}`;
};

// The system prompt that the last question was asked with.
const systemOf = (chat) => ({ system: chat.turns.at(-1)?.chosen.system?.trim() ?? "" });
