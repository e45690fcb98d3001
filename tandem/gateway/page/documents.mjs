// Files that are dropped here become documents of the device. Their bytes are sent as they are: the
// server reads text, in any encoding, out of Markdown, web pages, PDF and office files.
import { ApiError, addDocument } from "./api.mjs";
import { html } from "./html.mjs";
import { say } from "./language.mjs";
import { documentTrouble, troubleOf } from "./troubles.mjs";
import { useState } from "./vendor/hooks.mjs";

const MOST_BYTES = 1_500_000; // in base64 this is what a server takes at once, unless it is set otherwise
const TYPES = [
  ...[".txt", ".md", ".markdown", ".rst", ".log", ".html", ".htm", ".csv", ".tsv", ".json", ".xml", ".yaml", ".yml"],
  ...[".pdf", ".docx", ".xlsx", ".pptx", ".eml"],
];

export function Documents({ usable }) {
  const [added, setAdded] = useState([]);
  const [isOver, setIsOver] = useState(false);
  const note = (name, state, trouble = null) =>
    setAdded((all) => [...all.filter((each) => each.name !== name), { name, state, trouble }]);
  const take = async (files) => {
    for (const file of files) {
      try {
        const kind = /\.[^.]*$/.exec(file.name.toLowerCase())?.[0] ?? "";
        if (!TYPES.includes(kind) && !file.type.startsWith("text/")) throw new ApiError(0, { code: "unknown_type" });
        if (file.size > MOST_BYTES) throw new ApiError(0, { code: "too_large" });
        note(file.name, "adding");
        await addDocument(file.name, await base64(file));
        note(file.name, "added");
      } catch (error) {
        note(file.name, "refused", troubleOf(error));
      }
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setIsOver(false);
    take([...event.dataTransfer.files]);
  };
  const wordsOf = ({ state, trouble }) => {
    if (state === "refused") return documentTrouble(trouble);
    return say(state === "added" ? "fileAdded" : "fileAdding");
  };
  return html`<section class="card" aria-labelledby="documents-title">
    <h2 id="documents-title">${say("documentsTitle")}</h2>
    <label
      class=${isOver ? "drop over" : "drop"}
      onDragOver=${(event) => { event.preventDefault(); setIsOver(true); }}
      onDragLeave=${() => setIsOver(false)}
      onDrop=${drop}
    >
      <span>${say("dropFiles")}</span>
      <input type="file" multiple accept=${`${TYPES.join(",")},text/*`} onChange=${(event) => take([...event.target.files])} />
    </label>
    <p class="hint">${say("fileTypes")}</p>
    <div role="status">
      <ul class="added">
        ${added.map((each) => html`<li key=${each.name} class=${each.state}><b>${each.name}</b>${" "}${wordsOf(each)}</li>`)}
      </ul>
    </div>
    <p class="hint">${say("documentsStay")}${usable ? "" : ` ${say("documentsUnused")}`}</p>
  </section>`;
}

// The bytes in base64; a data URL has them after its comma.
const base64 = (file) =>
  new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new ApiError(0, { code: "unreadable", message: "cannot be read" }));
    reader.readAsDataURL(file);
  });
