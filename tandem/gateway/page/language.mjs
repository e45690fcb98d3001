// What the page says, in the browser's language or in the one that was chosen here. Every text is in
// the tables of english.mjs and german.mjs under the same name.
import { english } from "./english.mjs";
import { german } from "./german.mjs";
import { keep, kept } from "./kept.mjs";

export const LANGUAGES = { en: "English", de: "Deutsch" };
export const TABLES = { en: english, de: german };

const KEY = "tandem.language";

let language = firstLanguage();

export const currentLanguage = () => language;

export function setLanguage(name) {
  language = name;
  keep(KEY, name);
  document.documentElement.lang = name;
}

function firstLanguage() {
  const wanted = [kept(KEY, ""), ...(navigator.languages ?? [navigator.language])];
  const known = wanted.map((each) => String(each).slice(0, 2).toLowerCase()).find((each) => each in TABLES);
  return known ?? "en";
}

// The text of this name, with {values} in it. A text that depends on a number is a table of plural
// forms, of which `count` decides.
export function say(name, values = {}) {
  let text = TABLES[language][name];
  if (text === undefined) throw new Error(`no text is called ${name}`);
  if (typeof text === "object") text = text[new Intl.PluralRules(language).select(values.count)] ?? text.other;
  return text.replace(/\{(\w+)\}/g, (_, key) => String(values[key] ?? ""));
}

export const number = (value, digits = 0) =>
  new Intl.NumberFormat(language, {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
    useGrouping: false,
  }).format(value);

// A number of things, in groups of thousands.
export const many = (value) => new Intl.NumberFormat(language).format(value);

export const milliseconds = (seconds) =>
  seconds >= 1 ? `${number(seconds, 2)} s` : `${number(seconds * 1e3, seconds < 0.01 ? 1 : 0)} ms`;

export const kibibytes = (bytes) => `${number(bytes / 1024, 1)} KiB`;

export const percent = (share) => {
  const value = 100 * share;
  return `${value >= 99.95 ? "100" : number(value, value < 10 ? 1 : 0)} %`;
};

export const dateWords = (ms) =>
  new Intl.DateTimeFormat(language, { dateStyle: "medium", timeStyle: "short" }).format(ms);
