// What a person chooses: how answers are made.
import { html } from "./html.mjs";
import { number, say } from "./language.mjs";
import { useState } from "./vendor/hooks.mjs";

const EXPLAINED = ["auto", "ar", "dragon-coupled", "coupled"]; // the first three that are served
const MAX_EXPLAINED = 3;

export function Controls({ model, chosen, choose }) {
  const kinds = model.tandem;
  const field = (name) => ({
    value: chosen[name],
    onInput: (event) => choose({ [name]: event.target.value }),
  });
  const explained = EXPLAINED.filter((name) => kinds.presets.includes(name)).slice(0, MAX_EXPLAINED);
  const [wasOther] = useState(() => !explained.includes(chosen.preset)); // it stays as the person leaves it
  const plain = kinds.presets.filter((name) => !kinds.documents.includes(name));
  const noteOf = (name) => (kinds.lossy.includes(name) ? ` (${say("lossy")})` : "");
  const option = (name) => html`<option value=${name}>${name}${noteOf(name)}</option>`;
  return html`<section class="card" aria-labelledby="how-title">
    <h2 id="how-title">${say("howTitle")}</h2>
    <fieldset class="methods">
      <legend class="unseen">${say("method")}</legend>
      ${explained.map(
        (name) => html`<label class="method">
          <input type="radio" name="method" value=${name} checked=${chosen.preset === name} onChange=${() => choose({ preset: name })} />
          <span><b>${say(`method-${name}`)}</b> <small>${say(`method-${name}-words`)}</small></span>
        </label>`,
      )}
    </fieldset>
    <details class="more" open=${wasOther}>
      <summary>${say("allMethods", { count: kinds.presets.length })}</summary>
      <label class="field"><span>${say("preset")}</span>
        <select ...${field("preset")}>
          <optgroup label=${say("presetsPlain")}>${plain.map(option)}</optgroup>
          ${kinds.documents.length > 0 && html`<optgroup label=${say("presetsDocuments")}>${kinds.documents.map(option)}</optgroup>`}
        </select>
      </label>
    </details>
    <label class="field"><span>${say("systemPrompt")}</span>
      <textarea rows="2" maxlength="8000" placeholder=${say("systemPlaceholder")} ...${field("system")}></textarea>
    </label>
    <label class="field"><span>${say("temperature")} <b>${number(Number(chosen.temperature), 1)}</b></span>
      <input type="range" min="0" max="2" step="0.1" ...${field("temperature")} />
    </label>
    <details class="more">
      <summary>${say("moreSettings")}</summary>
      <div class="pairs">
        <label class="field"><span>${say("seedLabel")}</span>
          <input inputmode="numeric" pattern="[0-9]*" placeholder=${say("seedRandom")} ...${field("seed")} />
        </label>
        <label class="field"><span>${say("maximumLength")}</span>
          <input type="number" min="1" max="4096" required ...${field("maxTokens")} />
        </label>
      </div>
      <label class="field"><span>${say("lostCloud")}</span>
        <select ...${field("lostCloud")}>
          <option value="wait">${say("lostCloudWait")}</option>
          <option value="edge">${say("lostCloudEdge")}</option>
          <option value="fail">${say("lostCloudFail")}</option>
        </select>
      </label>
      <label class="tick">
        <input type="checkbox" checked=${chosen.logprobs} onChange=${(event) => choose({ logprobs: event.target.checked })} />
        <span>${say("showProbabilities")}</span>
      </label>
      ${!kinds.logprobs.includes(chosen.preset) && chosen.logprobs && html`<p class="hint">${say("noProbabilities")}</p>`}
    </details>
  </section>`;
}
