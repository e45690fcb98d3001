// A panel beside the conversation, which stays in view while that scrolls; where there is no room
// beside it, a dialog that a button of the header opens.
import { html } from "./html.mjs";
import { say } from "./language.mjs";
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";

export function Panel({ label, name, isBeside, isOpen, close, children }) {
  const dialog = useRef(null);
  useEffect(() => {
    const shown = dialog.current;
    if (isBeside || !shown) return;
    if (isOpen && !shown.open) shown.showModal();
    if (!isOpen && shown.open) shown.close();
  }, [isOpen, isBeside]);
  if (isBeside) return html`<aside class=${`panel ${name}`} aria-label=${label}>${children}</aside>`;
  const onClick = (event) => {
    if (event.target === dialog.current) close(); // beside what it shows
  };
  return html`<dialog class=${`drawer ${name}`} ref=${dialog} aria-label=${label} onClose=${close} onClick=${onClick}>
    <div class="inner">
      <button class="button small shut" onClick=${close}>${say("close")}</button>
      ${children}
    </div>
  </dialog>`;
}

export function useWidth(minimum) {
  const query = matchMedia(`(min-width: ${minimum})`);
  const [isWide, setIsWide] = useState(query.matches);
  useEffect(() => {
    const onChange = (event) => setIsWide(event.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, []);
  return isWide;
}
