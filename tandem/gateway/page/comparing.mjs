// Drafts beside the large model alone, in turns: how fast both were, and whether drafts paid, and why.
// Ratios are of the two answers of one turn, so that what slows this machine for a while slows both.
import { milliseconds, number, say } from "./language.mjs";

export const TURNS = 3;
const SHORT_TOKENS = 16; // answers with fewer have a speed that is mostly chance
const RARELY_RIGHT = 0.5; // below this acceptance, that is why drafts do not pay

// Runs the turns; who begins changes with each. `answerOf` gives the figures of an answer by "own" or
// "alone", and null where there are none; `each` gets those of one turn.
export async function inTurns(answerOf, each) {
  for (let turn = 0; turn < TURNS; turn += 1) {
    const measured = {};
    for (const who of turn % 2 ? ["own", "alone"] : ["alone", "own"]) {
      const figures = await answerOf(who);
      if (!figures) return;
      measured[who] = brief(figures);
    }
    each(measured);
  }
}

const brief = ({ tokens, tpot_s, drafted, accepted, cloud_drafted, cloud_accepted, target_passes, choice }) => ({
  ...{ tokens, tpot_s, drafted, accepted, cloud_drafted, cloud_accepted, target_passes, choice },
});

// What the turns so far say; nothing of fewer than two, and of answers without a speed.
export function comparedWords(turns, preset, other) {
  if (turns.length < 2 || turns.some(({ own, alone }) => !own.tpot_s || !alone.tpot_s)) return "";
  const own = spread(turns.map((turn) => turn.own.tpot_s));
  const theirs = spread(turns.map((turn) => turn.alone.tpot_s));
  const speeds = say("comparedSpeed", { own: between(own), preset, theirs: between(theirs), other });
  return `${speeds} ${verdict(turns)}`;
}

function verdict(turns) {
  const all = turns.map(({ own }) => own);
  if (all.some(({ tokens }) => tokens < SHORT_TOKENS)) return say("verdictShort");
  const ratio = spread(turns.map(({ own, alone }) => alone.tpot_s / own.tpot_s));
  const times = {
    times: number(ratio.middle, 2),
    lowest: number(ratio.lowest, 2),
    highest: number(ratio.highest, 2),
  };
  const why = whyNot(all.at(-1));
  if (!all.some(({ accepted, cloud_accepted }) => accepted || cloud_accepted)) return `${say("verdictNoDraft", times)} ${why}`;
  if (ratio.lowest > 1) {
    const passes = spread(all.map(({ target_passes, tokens }) => target_passes / tokens)).middle;
    return say("verdictPaid", { ...times, passes: number(passes, 2) });
  }
  if (ratio.highest < 1) return `${say("verdictUnpaid", times)} ${why}`;
  return `${say("verdictSame", times)} ${why}`;
}

// What costs most of the gain of a draft, of what was measured.
function whyNot({ choice, drafted, accepted, cloud_drafted = 0, cloud_accepted = 0 }) {
  if (!choice?.target_pass_s) {
    if (!(drafted + cloud_drafted)) return say("whyNone");
    return say("whyAcceptance", { share: number((100 * (accepted + cloud_accepted)) / (drafted + cloud_drafted)) });
  }
  if (choice.acceptance_rate < RARELY_RIGHT) return say("whyAcceptance", { share: number(100 * choice.acceptance_rate) });
  const costs = [
    ["whyChecking", choice.per_draft_token_s],
    ["whyDrafting", choice.draft_step_s],
    ["whyLink", choice.round_trip_s],
  ];
  const [name, cost] = costs.reduce((most, each) => (each[1] > most[1] ? each : most));
  return say(name, { passes: number(cost / choice.target_pass_s, 2) });
}

function spread(values) {
  const sorted = [...values].sort((one, other) => one - other);
  const half = (sorted.length - 1) / 2;
  return {
    middle: (sorted[Math.floor(half)] + sorted[Math.ceil(half)]) / 2,
    lowest: sorted[0],
    highest: sorted.at(-1),
  };
}

const between = ({ middle, lowest, highest }) =>
  say("between", { middle: milliseconds(middle), lowest: milliseconds(lowest), highest: milliseconds(highest) });
