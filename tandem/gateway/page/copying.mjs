// Copying to the clipboard, and files that the browser saves.
import { html } from "./html.mjs";
import { say } from "./language.mjs";
import { useEffect, useState } from "./vendor/hooks.mjs";

const SAID_MS = 2000;

export function CopyButton({ text, label, small = true }) {
  const [state, setState] = useState("");
  useEffect(() => {
    if (!state) return undefined;
    const timer = setTimeout(() => setState(""), SAID_MS);
    return () => clearTimeout(timer);
  }, [state]);
  const onClick = async () => setState((await copy(text)) ? "copied" : "copyFailed");
  return html`<button type="button" class=${small ? "button small" : "button"} aria-label=${state ? undefined : label} onClick=${onClick}>
      ${say(state || "copy")}
    </button>
    <span class="unseen" role="status">${state ? say(state) : ""}</span>`;
}

// Whether it was done. Browsers have a clipboard only over HTTPS and on this machine; elsewhere a
// selected text is copied as by the keyboard.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // not here
  }
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "unseen";
  const before = document.activeElement;
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } finally {
    field.remove();
    before?.focus();
  }
}

export function saveFile(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
