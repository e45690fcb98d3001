// What a person chooses: how answers are made, and how bad the emulated link is.
import { addDocument, link } from "./api.mjs";
import { html } from "./html.mjs";
import { useEffect, useState } from "./vendor/hooks.mjs";

const OBJECTIVES = [
  ["latency", "latency: soon"],
  ["0.5", "soon and cheap alike"],
  ["cost", "cost: little of the cloud"],
  ["energy", "energy: little of the edge’s battery"],
];

export function Controls({ model, chosen, choose }) {
  const wide = useWide();
  const kinds = model.tandem;
  const field = (name) => ({
    value: chosen[name],
    onInput: (event) => choose({ [name]: event.target.value }),
  });
  const plain = kinds.presets.filter((name) => !kinds.documents.includes(name));
  const noteOf = (name) => (kinds.lossy.includes(name) ? " (lossy)" : "");
  const option = (name) => html`<option value=${name}>${name}${noteOf(name)}</option>`;
  return html`<details class="card" open=${wide}>
    <summary>How to answer</summary>
    <label class="field"><span>Preset</span>
      <select ...${field("preset")}>
        <optgroup label="Draft and target">${plain.map(option)}</optgroup>
        ${kinds.documents.length > 0 && html`<optgroup label="From documents">${kinds.documents.map(option)}</optgroup>`}
      </select>
    </label>
    ${kinds.objectives?.includes(chosen.preset) &&
    html`<label class="field"><span>Objective</span>
      <select ...${field("objective")}>
        <option value="">as the drafter is set</option>
        ${OBJECTIVES.map(([value, words]) => html`<option value=${value}>${words}</option>`)}
      </select>
    </label>`}
    <label class="field"><span>Temperature <b>${Number(chosen.temperature).toFixed(1)}</b></span>
      <input type="range" min="0" max="2" step="0.1" ...${field("temperature")} />
    </label>
    <div class="pairs">
      <label class="field"><span>Seed</span>
        <input inputmode="numeric" pattern="[0-9]*" placeholder="random" ...${field("seed")} />
      </label>
      <label class="field"><span>Most tokens</span>
        <input type="number" min="1" max="4096" required ...${field("maxTokens")} />
      </label>
    </div>
    <label class="field"><span>If the cloud is lost</span>
      <select ...${field("lostCloud")}>
        <option value="wait">wait for it</option>
        <option value="edge">go on at the edge</option>
        <option value="fail">give up</option>
      </select>
    </label>
    <label class="tick">
      <input type="checkbox" checked=${chosen.logprobs} onChange=${(event) => choose({ logprobs: event.target.checked })} />
      <span>Tell probabilities</span>
    </label>
    ${!kinds.logprobs.includes(chosen.preset) && chosen.logprobs && html`<p class="hint">This preset cannot tell them.</p>`}
  </details>`;
}

// Sliders of the link emulator, for those who may change it.
export function Link({ report }) {
  const [state, setState] = useState(null);
  const wide = useWide();
  const change = async (wanted) => {
    try {
      setState(await link(wanted));
    } catch (error) {
      report(error);
    }
  };
  useEffect(() => {
    change();
  }, []);
  if (!state) return null;
  return html`<details class="card" open=${wide}>
    <summary>The link</summary>
    <label class="field"><span>Round trip <b>${state.rtt_ms.toFixed(0)} ms</b></span>
      <input type="range" min="0" max="500" step="5" value=${state.rtt_ms}
        onChange=${(event) => change({ rtt_ms: Number(event.target.value) })} />
    </label>
    <label class="field"><span>Bandwidth <b>${state.mbps ? `${Number(state.mbps.toPrecision(2))} Mbit/s` : "no limit"}</b></span>
      <input type="range" min="-1" max="3.1" step="0.1" value=${state.mbps ? Math.log10(state.mbps) : 3.1}
        onChange=${(event) => change({ mbps: bandwidth(Number(event.target.value)) })} />
    </label>
    <div class="row">
      <button class="button" aria-pressed=${state.cut} onClick=${() => change({ cut: !state.cut })}>
        ${state.cut ? "Restore the link" : "Cut the link"}
      </button>
    </div>
    <p class="hint" role="status">${state.cut ? "The link is cut." : ""}</p>
  </details>`;
}

const MOST_BYTES = 1_000_000;

// Files that are dropped here become documents of the device.
export function Documents({ usable }) {
  const wide = useWide();
  const [added, setAdded] = useState([]);
  const [isOver, setIsOver] = useState(false);
  const note = (name, words) => setAdded((all) => [...all.filter((each) => each.name !== name), { name, words }]);
  const take = async (files) => {
    for (const file of files) {
      try {
        if (file.size > MOST_BYTES) throw new Error("is larger than 1 MB");
        note(file.name, "is being added…");
        await addDocument(file.name, await file.text());
        note(file.name, "added");
      } catch (error) {
        note(file.name, error.message);
      }
    }
  };
  const drop = (event) => {
    event.preventDefault();
    setIsOver(false);
    take([...event.dataTransfer.files]);
  };
  return html`<details class="card" open=${wide}>
    <summary>The device’s documents</summary>
    <label
      class=${isOver ? "drop over" : "drop"}
      onDragOver=${(event) => { event.preventDefault(); setIsOver(true); }}
      onDragLeave=${() => setIsOver(false)}
      onDrop=${drop}
    >
      <span>Drop texts here, or choose them</span>
      <input type="file" multiple accept=".txt,.md,.html,text/*" onChange=${(event) => take([...event.target.files])} />
    </label>
    <div role="status">
      <ul class="added">
        ${added.map((each) => html`<li key=${each.name}><b>${each.name}</b>${" "}${each.words}</li>`)}
      </ul>
    </div>
    <p class="hint">They stay on the device.${usable ? "" : " Choose a preset that answers from documents to use them."}</p>
  </details>`;
}

// From the slider's logarithm; its end is no limit.
const bandwidth = (exponent) => (exponent > 3.05 ? 0 : Number((10 ** exponent).toPrecision(2)));

export function useWide() {
  const query = matchMedia("(min-width: 60rem)");
  const [wide, setWide] = useState(query.matches);
  useEffect(() => {
    const onChange = (event) => setWide(event.matches);
    query.addEventListener("change", onChange);
    return () => query.removeEventListener("change", onChange);
  }, []);
  return wide;
}
