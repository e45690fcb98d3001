// Errors in the page's words. The API's messages name fields of requests and parts of the suite, which
// a person on this page has never seen; where nothing better is known they follow, as what the server
// said.
import { many, say } from "./language.mjs";

// What can be kept of an error with its answer.
export const troubleOf = (error) => ({
  status: error.status ?? 0,
  code: error.code ?? "",
  param: error.param ?? "",
  message: error.message,
  retryAfterS: error.retryAfterS ?? 0,
});

const FIELDS = {
  max_tokens: "maximumLength",
  max_completion_tokens: "maximumLength",
  seed: "seedLabel",
  temperature: "temperature",
  "tandem.preset": "preset",
  preset: "preset",
};

// { words, said }: a sentence, and the server's own words where they say more.
export function explained(trouble) {
  const { status, code, param, message, retryAfterS } = trouble;
  const one = (name, values) => ({ words: say(name, values), said: "" });
  const more = (name, values) => ({ words: say(name, values), said: message });
  if (code === "unreachable") return one("troubleUnreachable");
  if (code === "broke_off") return one("troubleBrokeOff");
  if (status === 401) return one("troubleKey");
  if (status === 403) return more("troubleScope");
  if (status === 404) return one("troubleModel");
  if (code === "document_quota_exceeded") return one("troubleQuota");
  if (status === 413) return one("troubleTooMuch");
  if (code === "context_length_exceeded") return tooLong(message);
  if (param === "query" || param === "tandem.query") {
    const most = /(\d+) characters/.exec(message);
    return most ? one("troubleQuery", { most: many(Number(most[1])) }) : more("troubleRefused");
  }
  if (FIELDS[param]) return field(say(FIELDS[param]), message);
  if (status === 429) return one("troubleBusy", { count: retryAfterS || 1 });
  if (status === 504 || code === "timeout") return one("troubleTimeout");
  if (code === "misconfigured" || code === "upstream_auth_failed") return more("troubleSetUp");
  if (code === "unavailable" || status === 503) return more("troubleUnavailable");
  if (status === 400) return more("troubleRefused");
  return more("troubleServer", { status: status || "" });
}

function tooLong(message) {
  const most = /the context holds (\d+)/.exec(message);
  const words = most ? say("troubleContext", { most: many(Number(most[1])) }) : say("troubleContextUnknown");
  return { words, said: "" };
}

function field(name, message) {
  const least = /must be at least ([\d.]+)/.exec(message);
  const most = /must be at most ([\d.]+)/.exec(message);
  if (least) return { words: say("troubleLeast", { name, bound: many(Number(least[1])) }), said: "" };
  if (most) return { words: say("troubleMost", { name, bound: many(Number(most[1])) }), said: "" };
  return { words: say("troubleField", { name }), said: message };
}

// Why a document was not taken.
export function documentTrouble(trouble) {
  const { message, status, code } = trouble;
  if (code === "too_large") return say("fileTooLarge");
  if (code === "unknown_type") return say("fileUnknownType");
  if (code !== "document_quota_exceeded" && status === 413) return say("fileTooLarge");
  if (/zero byte|known encoding/.test(message)) return say("fileNotText");
  if (/PDF without text/.test(message)) return say("fileOnlyPictures");
  if (/has no text/.test(message)) return say("fileNoText");
  if (/with a password/.test(message)) return say("filePassword");
  if (/no retriever/.test(message)) return say("fileNoDocuments");
  if (/needs a package/.test(message)) return say("fileNoReader");
  if (/takes more than|characters of text/.test(message)) return say("fileTooMuchText");
  if (/is not (a )?readable|cannot be read|is not a |is not JSON|must be an object/.test(message)) return say("fileUnreadable");
  if (trouble.param === "name" || /^name: /.test(message)) return say("fileName");
  const { words, said } = explained(trouble);
  return said ? `${words} (${said})` : words;
}
