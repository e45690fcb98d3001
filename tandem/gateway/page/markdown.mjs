// Markdown as a tree of plain objects, and as elements. Nothing of a model's text is ever parsed as
// HTML: a tag in it is shown as it is written, a link leads to http, https or mailto, and an image is
// a link, since a picture of another host would tell that host who reads. Time grows with the text's
// length, whatever it says: an answer is parsed again with each of its tokens.
import { html } from "./html.mjs";
import { say } from "./language.mjs";

const DEEPEST = 12; // lists and quotes in each other, and inline marks in each other
const LONGEST_MARK = 64; // of code; each length is sought by itself
const FENCE = /^( {0,3})(`{3,}|~{3,})/;
const HEADING = /^ {0,3}(#{1,6})[ \t]/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|$)/;
const TABLE_RULE = /^:?-+:?$/; // of a cell
const ESCAPED = /[!-/:-@[-`{-~]/;

// `code` draws program text; `grows`: more of the text is on its way.
export function Markdown({ text, code, grows }) {
  return html`<div class="prose">${blocksOf(text).map((block) => Block(block, code, grows))}</div>`;
}

// The blocks of a text: { kind, … }, with inline parts in `parts` and blocks in `blocks`.
export function blocksOf(text) {
  return parseBlocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function parseBlocks(lines, depth) {
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    const fence = fenceAt(line);
    if (fence) {
      const found = fencedCode(lines, at, fence);
      blocks.push(found.block);
      at = found.next;
      continue;
    }
    if (/^(?: {4}|\t)/.test(line)) {
      const found = indentedCode(lines, at);
      blocks.push(found.block);
      at = found.next;
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      blocks.push({ kind: "heading", level: heading[1].length, parts: parts(headingWords(line.slice(heading[0].length))) });
      at += 1;
      continue;
    }
    if (RULE.test(line)) {
      blocks.push({ kind: "rule" });
      at += 1;
      continue;
    }
    if (QUOTE.test(line) && depth < DEEPEST) {
      const begin = at;
      while (at < lines.length && QUOTE.test(lines[at])) at += 1;
      const inner = lines.slice(begin, at).map((each) => each.replace(QUOTE, ""));
      blocks.push({ kind: "quote", blocks: parseBlocks(inner, depth + 1) });
      continue;
    }
    if (ITEM.test(line) && depth < DEEPEST) {
      const found = list(lines, at, depth);
      blocks.push(found.block);
      at = found.next;
      continue;
    }
    if (line.includes("|") && isTableRule(lines[at + 1] ?? "")) {
      const found = table(lines, at);
      if (found) {
        blocks.push(found.block);
        at = found.next;
        continue;
      }
    }
    const begin = at;
    at += 1;
    while (at < lines.length && lines[at].trim() && !interrupts(lines[at], depth)) at += 1;
    const words = lines.slice(begin, at).map((each) => each.trimStart());
    blocks.push({ kind: "paragraph", parts: parts(words.join("\n").trimEnd()) });
  }
  return blocks;
}

// Whether a line begins something else than one more line of a paragraph.
function interrupts(line, depth) {
  if (fenceAt(line) || HEADING.test(line) || RULE.test(line)) return true;
  if (depth >= DEEPEST) return false;
  const item = ITEM.exec(line);
  return QUOTE.test(line) || (item !== null && Boolean(item[4]) && (/^[-*+]$/.test(item[2]) || /^1[.)]$/.test(item[2])));
}

// A pattern with two open ends in a row would be tried at each letter between them, so the rest of a
// line is read by hand.
function fenceAt(line) {
  const [opening, indent, mark] = FENCE.exec(line) ?? [];
  const rest = opening && line.slice(opening.length);
  if (!opening || rest.includes("`")) return null;
  return { indent: indent.length, mark, language: /^[ \t]*(\S*)/.exec(rest)[1] };
}

function headingWords(rest) {
  const words = rest.trim();
  let end = words.length;
  while (words[end - 1] === "#") end -= 1;
  const closes = end < words.length && (end === 0 || " \t".includes(words[end - 1]));
  return closes && end ? words.slice(0, end).trimEnd() : words;
}

const isTableRule = (line) => line.includes("-") && cells(line).every((each) => TABLE_RULE.test(each));

// A fence that is not closed, as while an answer streams in, holds all that follows.
function fencedCode(lines, at, { indent, mark, language }) {
  const closes = new RegExp(`^ {0,3}\\${mark[0]}{${mark.length},}[ \\t]*$`);
  const code = [];
  let next = at + 1;
  while (next < lines.length && !closes.test(lines[next])) {
    code.push(lines[next].replace(new RegExp(`^ {0,${indent}}`), ""));
    next += 1;
  }
  const isOpen = next >= lines.length;
  if (isOpen && code.at(-1) === "") code.pop(); // what follows the last line's end
  return { block: { kind: "code", language, text: code.join("\n"), isOpen }, next: next + 1 };
}

function indentedCode(lines, at) {
  let next = at;
  let end = at;
  while (next < lines.length && (!lines[next].trim() || /^(?: {4}|\t)/.test(lines[next]))) {
    if (lines[next].trim()) end = next + 1;
    next += 1;
  }
  const code = lines.slice(at, end).map((each) => each.replace(/^(?: {4}|\t)/, ""));
  return { block: { kind: "code", language: "", text: code.join("\n"), isOpen: false }, next: end };
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at]);
  const ordered = /\d/.test(first[2]);
  const sameKind = (mark) => (ordered ? mark.slice(-1) === first[2].slice(-1) && /\d/.test(mark) : mark === first[2]);
  const items = [];
  let isLoose = false;
  let next = at;
  while (next < lines.length) {
    const item = ITEM.exec(lines[next]);
    if (!item || !sameKind(item[2]) || RULE.test(lines[next])) break;
    const blanks = item[4] ? Math.min(item[3].length, 4) : 1;
    const width = item[1].length + item[2].length + blanks;
    const inner = [item[4] ?? ""];
    next += 1;
    while (next < lines.length) {
      const line = lines[next];
      const indent = line.length - line.trimStart().length;
      if (!line.trim()) {
        const follows = lines[next + 1] ?? "";
        const further = follows.length - follows.trimStart().length >= width && follows.trim();
        const sibling = ITEM.exec(follows);
        if (!further && !(sibling && sameKind(sibling[2]))) break;
        isLoose = true;
        inner.push("");
      } else if (indent >= width) {
        inner.push(line.slice(width));
      } else if (ITEM.test(line) || interrupts(line, depth) || !inner.at(-1).trim()) {
        break;
      } else {
        inner.push(line.trimStart());
      }
      next += 1;
    }
    items.push(parseBlocks(inner, depth + 1));
    while (next < lines.length && !lines[next].trim() && ITEM.test(lines[next + 1] ?? "")) next += 1;
  }
  const start = ordered ? Number(first[2].slice(0, -1)) : null;
  return { block: { kind: "list", start, items, isLoose }, next };
}

function table(lines, at) {
  const head = cells(lines[at]);
  const rules = cells(lines[at + 1]);
  if (head.length !== rules.length) return null;
  const aligns = rules.map((each) => {
    if (each.startsWith(":") && each.endsWith(":")) return "center";
    return each.endsWith(":") ? "right" : "left";
  });
  const rows = [];
  let next = at + 2;
  while (next < lines.length && lines[next].trim() && lines[next].includes("|")) {
    const row = cells(lines[next]);
    // As many as there are: beside a head of 5,000 cells each line of one sign would be as many.
    rows.push(row.slice(0, head.length).map((each) => parts(each)));
    next += 1;
  }
  return { block: { kind: "table", aligns, head: head.map((each) => parts(each)), rows }, next };
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\|/, "")
    .replace(/(?<!\\)\|$/, "")
    .split(/(?<!\\)\|/)
    .map((each) => each.trim().replaceAll("\\|", "|"));

// The inline parts of a text: strings, and { kind, parts | text, … }.
export function parts(text, depth = 0) {
  const found = [];
  const absent = new Set(); // marks of code that were sought to the end, and are not there again
  const places = new Map(); // what was sought last of each mark: { from, place }
  let lines = ""; // plain text before the line at which we are
  let plain = ""; // and of this line
  let at = 0;
  const push = (part, next) => {
    if (lines || plain) found.push(lines + plain);
    lines = plain = "";
    found.push(part);
    at = next;
  };
  const closing = (mark, from) => {
    const last = places.get(mark);
    if (last && last.from <= from && (last.place < 0 || from <= last.place)) return last.place;
    const place = text.indexOf(mark, from);
    places.set(mark, { from, place });
    return place;
  };
  while (at < text.length) {
    const sign = text[at];
    if (sign === "\\" && text[at + 1] === "\n") {
      push({ kind: "break" }, at + 2);
    } else if (sign === "\\" && ESCAPED.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (sign === "\n") {
      const isHard = plain.endsWith("  ");
      plain = plain.trimEnd();
      if (isHard) push({ kind: "break" }, at + 1);
      else {
        lines += `${plain}\n`;
        plain = "";
        at += 1;
      }
    } else if (sign === "`") {
      const mark = text.slice(at, runEnd(text, at));
      const end = mark.length > LONGEST_MARK ? -1 : codeEnd(text, mark, at + mark.length, absent);
      if (end < 0) {
        plain += mark;
        at += mark.length;
      } else {
        const inner = text.slice(at + mark.length, end).replaceAll("\n", " ");
        const trimmed = /^ .*\S.* $/.test(inner) ? inner.slice(1, -1) : inner;
        push({ kind: "code", text: trimmed }, end + mark.length);
      }
    } else if (sign === "!" && text[at + 1] === "[") {
      const link = linkAt(text, at + 1, closing);
      if (link) push({ ...link.part, kind: "link", parts: [link.words || link.part.href] }, link.next);
      else {
        plain += sign;
        at += 1;
      }
    } else if (sign === "[") {
      const link = depth < DEEPEST ? linkAt(text, at, closing) : null;
      if (link) push({ ...link.part, kind: "link", parts: parts(link.words, depth + 1) }, link.next);
      else {
        plain += sign;
        at += 1;
      }
    } else if (sign === "<" || (sign === "h" && /^https?:\/\//.test(text.slice(at, at + 8)))) {
      const address = addressAt(text, at, lines || plain ? text[at - 1] : "");
      if (address) push({ kind: "link", href: address.href, parts: [address.words] }, address.next);
      else {
        plain += sign;
        at += 1;
      }
    } else if ("*_~".includes(sign)) {
      const marked = depth < DEEPEST ? markedAt(text, at, closing) : null;
      if (marked) push({ kind: marked.kind, parts: parts(marked.words, depth + 1) }, marked.next);
      else {
        const end = runEnd(text, at);
        plain += text.slice(at, end);
        at = end;
      }
    } else {
      plain += sign;
      at += 1;
    }
  }
  if (lines || plain) found.push(lines + plain);
  return found;
}

// Where a run of the same sign ends.
function runEnd(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return end;
}

function codeEnd(text, mark, from, absent) {
  if (absent.has(`code${mark.length}`)) return -1;
  let at = from;
  for (;;) {
    at = text.indexOf(mark, at);
    if (at < 0) {
      absent.add(`code${mark.length}`);
      return -1;
    }
    let end = at;
    while (text[end] === "`") end += 1;
    if (end - at === mark.length) return at;
    at = end;
  }
}

// [words](address "title"), at the bracket.
function linkAt(text, at, closing) {
  const end = closing("](", at + 1);
  if (end < 0 || end - at > 2000) return null;
  const words = text.slice(at + 1, end);
  if (words.includes("[") && !words.includes("]")) return null; // the link begins at a later bracket
  const close = closing(")", end + 2);
  if (close < 0 || close - end > 2100) return null;
  let last = close;
  const opened = text.slice(end + 2, close).split("(").length - 1;
  for (let index = 0; index < Math.min(opened, 4) && text[last + 1] !== undefined; index += 1) {
    const further = text.slice(last + 1, last + 1000).indexOf(")");
    if (further < 0 || /\s/.test(text.slice(last, last + 1 + further))) break;
    last += 1 + further;
  }
  const href = text.slice(end + 2, last).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  const safe = safeAddress(href);
  return safe ? { words, part: { href: safe }, next: last + 1 } : null;
}

// <https://…> or a bare address, which follows no letter: `before` is the plain one before it.
function addressAt(text, at, before) {
  const rest = text.slice(at, at + 2048);
  const pointed = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/.exec(rest);
  if (pointed) {
    const href = safeAddress(pointed[1]);
    return href && { href, words: pointed[1], next: at + pointed[0].length };
  }
  if (text[at] === "<" || /\w/.test(before)) return null;
  const bare = /^https?:\/\/[^\s<>`*]*[^\s<>`*.,:;!?'")\]}]/.exec(rest);
  const href = bare && safeAddress(bare[0]);
  return href ? { href, words: bare[0], next: at + bare[0].length } : null;
}

export function safeAddress(href) {
  try {
    const { protocol } = new URL(href);
    return ["http:", "https:", "mailto:"].includes(protocol) ? href : null;
  } catch {
    return null; // of this page's own server an answer knows no address
  }
}

const MARKS = [
  ["***", "both"],
  ["**", "strong"],
  ["__", "strong"],
  ["~~", "deleted"],
  ["*", "emphasis"],
  ["_", "emphasis"],
];

function markedAt(text, at, closing) {
  for (const [mark, kind] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const inWord = mark[0] === "_" && /\w/.test(text[at - 1] ?? "");
    if (inWord || /\s/.test(text[at + mark.length] ?? " ")) return null;
    const end = closingMark(text, mark, at + mark.length, closing);
    if (end < 0) continue;
    return { kind, words: text.slice(at + mark.length, end), next: end + mark.length };
  }
  return null;
}

// The next such mark that may close: not after a blank, and an underscore not inside of a word. It is
// sought among a few only; in a text full of marks all others would be looked at for each of them.
function closingMark(text, mark, from, closing) {
  let at = from;
  for (let tries = 0; tries < 16; tries += 1) {
    at = closing(mark, at);
    if (at < 0) return -1;
    const single = mark.length === 1 && (text[at + 1] === mark || text[at - 1] === mark);
    const inWord = mark[0] === "_" && /\w/.test(text[at + mark.length] ?? "");
    if (at > from && !single && !inWord && !/\s/.test(text[at - 1])) {
      while (text[at + mark.length] === mark[0] && mark.length > 1 && text[at + mark.length + 1] !== mark[0]) at += 1;
      return at;
    }
    at += mark.length;
    while (single && text[at] === mark) at += 1;
  }
  return -1;
}

// --- elements -----------------------------------------------------------------------------------

function Block(block, code, grows) {
  const inner = (blocks) => blocks.map((each) => Block(each, code, grows));
  switch (block.kind) {
    case "heading": // below the headings of the page
      return html`<p class=${`heading level-${block.level}`} role="heading" aria-level=${Math.min(6, block.level + 2)}>${inline(block.parts)}</p>`;
    case "code":
      return html`<${code} language=${block.language} text=${block.text} isWritten=${block.isOpen && grows} />`;
    case "rule":
      return html`<hr />`;
    case "quote":
      return html`<blockquote>${inner(block.blocks)}</blockquote>`;
    case "list": {
      const items = block.items.map((item) => html`<li>${tight(item, block.isLoose).map((each) => (Array.isArray(each) ? inline(each) : Block(each, code, grows)))}</li>`);
      return block.start === null ? html`<ul>${items}</ul>` : html`<ol start=${block.start}>${items}</ol>`;
    }
    case "table":
      return html`<div class="wide" tabindex="0" role="group" aria-label=${say("tableLabel")}><table>
        <thead><tr>${block.head.map((cell, index) => html`<th scope="col" class=${block.aligns[index]}>${inline(cell)}</th>`)}</tr></thead>
        <tbody>${block.rows.map((row) => html`<tr>${row.map((cell, index) => html`<td class=${block.aligns[index]}>${inline(cell)}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    default:
      return html`<p>${inline(block.parts)}</p>`;
  }
}

// In a list without empty lines an item's words are no paragraphs.
const tight = (blocks, isLoose) =>
  isLoose ? blocks : blocks.map((each) => (each.kind === "paragraph" ? each.parts : each));

function inline(list) {
  return list.map((part) => {
    if (typeof part === "string") return part;
    switch (part.kind) {
      case "code":
        return html`<code>${part.text}</code>`;
      case "strong":
        return html`<strong>${inline(part.parts)}</strong>`;
      case "emphasis":
        return html`<em>${inline(part.parts)}</em>`;
      case "both":
        return html`<strong><em>${inline(part.parts)}</em></strong>`;
      case "deleted":
        return html`<del>${inline(part.parts)}</del>`;
      case "break":
        return html`<br />`;
      default:
        return html`<a href=${part.href} target="_blank" rel="noopener noreferrer nofollow">${inline(part.parts)}</a>`;
    }
  });
}
