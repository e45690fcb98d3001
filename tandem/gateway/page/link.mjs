// Sliders of the link emulator, for those who may change it.
import { link } from "./api.mjs";
import { html } from "./html.mjs";
import { number, say } from "./language.mjs";
import { useEffect, useState } from "./vendor/hooks.mjs";

export function Link({ report }) {
  const [state, setState] = useState(null);
  const change = async (wanted) => {
    try {
      setState(await link(wanted));
    } catch (error) {
      if (error.status !== 403) report(error); // for others there are no sliders
    }
  };
  useEffect(() => {
    change();
  }, []);
  if (!state) return null;
  return html`<section class="card" aria-labelledby="link-title">
    <h2 id="link-title">${say("linkTitle")}</h2>
    <label class="field"><span>${say("roundTrip")} <b>${number(state.rtt_ms)} ms</b></span>
      <input type="range" min="0" max="500" step="5" value=${state.rtt_ms}
        onChange=${(event) => change({ rtt_ms: Number(event.target.value) })} />
    </label>
    <${Bandwidth} name=${say("bandwidthUp")} mbps=${state.mbps_up} change=${(mbps_up) => change({ mbps_up })} />
    <${Bandwidth} name=${say("bandwidthDown")} mbps=${state.mbps_down} change=${(mbps_down) => change({ mbps_down })} />
    <div class="row">
      <button class="button" aria-pressed=${state.cut} onClick=${() => change({ cut: !state.cut })}>
        ${say(state.cut ? "restoreLink" : "cutLink")}
      </button>
    </div>
    <p class="hint" role="status">${state.cut ? say("linkIsCut") : ""}</p>
  </section>`;
}

function Bandwidth({ name, mbps, change }) {
  return html`<label class="field"><span>${name} <b>${mbps ? `${shortly(mbps)} Mbit/s` : say("noLimit")}</b></span>
    <input type="range" min="-1" max="3.1" step="0.1" value=${mbps ? Math.log10(mbps) : 3.1}
      onChange=${(event) => change(bandwidth(Number(event.target.value)))} />
  </label>`;
}

const shortly = (mbps) => number(mbps, mbps < 1 ? 2 : mbps < 10 ? 1 : 0);

// From the slider's logarithm; its end is no limit.
const bandwidth = (exponent) => (exponent > 3.05 ? 0 : Number((10 ** exponent).toPrecision(2)));
