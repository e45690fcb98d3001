// Markdown, read by markdown-it and drawn as elements. Nothing of a model's text is ever parsed as HTML:
// a tag in it is shown as it is written, a link leads to http, https or mailto, and an image is a link,
// since a picture of another host would tell that host who reads.
import { html } from "./html.mjs";
import { say } from "./language.mjs";
import markdownIt from "./vendor/markdown-it.mjs";

const DEEPEST = 24; // lists and quotes in each other
const reader = markdownIt({ html: false, linkify: true, maxNesting: DEEPEST });
reader.disable("lheading"); // a line of an answer that grows would be a heading until its list begins
reader.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
reader.validateLink = (href) => /^(https?:|mailto:)/i.test(href);

// `code` draws program text; `grows`: more of the text is on its way.
export function Markdown({ text, code, grows }) {
  const asCode = (token, language) =>
    html`<${code} language=${language} text=${token.content.replace(/\n$/, "")} isWritten=${grows && isOpen(token)} />`;
  return html`<div class="prose">${drawn(tokensOf(text), asCode)}</div>`;
}

export const tokensOf = (text) => reader.parse(text, {});

// Whether the fence of a code was not closed yet.
function isOpen({ type, map, content }) {
  const lines = content === "" ? 0 : content.replace(/\n$/, "").split("\n").length;
  return type === "fence" && map[1] - map[0] < lines + 2;
}

function drawn(tokens, asCode) {
  const open = [{ children: [] }];
  for (const token of tokens) {
    if (token.nesting === 1) open.push({ token, children: [] });
    else if (token.nesting === -1) {
      const { token: opening, children } = open.pop();
      open.at(-1).children.push(element(opening, children));
    } else {
      const isLinked = open.some((each) => each.token?.type === "link_open");
      open.at(-1).children.push(leaf(token, asCode, isLinked));
    }
  }
  return open[0].children;
}

function element(token, children) {
  if (token.hidden) return children; // in a list without empty lines an item's words are no paragraphs
  const level = /^h([1-6])$/.exec(token.tag)?.[1];
  if (level) {
    // Below the headings of the page.
    return html`<p class=${`heading level-${level}`} role="heading" aria-level=${Math.min(6, Number(level) + 2)}>${children}</p>`;
  }
  switch (token.type) {
    case "link_open":
      return link(token.attrGet("href"), children);
    case "ordered_list_open":
      return html`<ol start=${token.attrGet("start") ?? 1}>${children}</ol>`;
    case "table_open":
      return html`<div class="wide" tabindex="0" role="group" aria-label=${say("tableLabel")}><table>${children}</table></div>`;
    case "th_open":
    case "td_open":
      return html`<${token.tag} class=${/\w+$/.exec(token.attrGet("style") ?? "left")[0]}>${children}</${token.tag}>`;
    default:
      return html`<${token.tag}>${children}</${token.tag}>`;
  }
}

function leaf(token, asCode, isLinked) {
  switch (token.type) {
    case "inline":
      return drawn(token.children, asCode);
    case "fence":
      return asCode(token, token.info.trim().split(/\s/)[0]);
    case "code_block":
      return asCode(token, "");
    case "code_inline":
      return html`<code>${token.content}</code>`;
    case "softbreak":
      return "\n";
    case "hardbreak":
      return html`<br />`;
    case "hr":
      return html`<hr />`;
    case "image": {
      const words = token.content || token.attrGet("src");
      return isLinked ? words : link(token.attrGet("src"), words);
    }
    default:
      return token.content;
  }
}

const link = (href, words) =>
  html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${words}</a>`;
