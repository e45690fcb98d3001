// The HTTP API, as this page uses it: by relative paths, so that a proxy may serve all below a prefix.
// The key is kept for this tab alone.

const KEY = "tandem-key";

// What went wrong, as the API says it; the page's own words for it are in troubles.mjs.
export class ApiError extends Error {
  constructor(status, error, retryAfterS = 0) {
    super(error.message ?? "");
    this.status = status;
    this.code = error.code ?? "";
    this.param = error.param ?? "";
    this.retryAfterS = retryAfterS;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) =>
  key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY);

export async function features() {
  let response;
  try {
    response = await fetch("page/features.json");
  } catch {
    throw unreachable();
  }
  if (!response.ok) throw new ApiError(response.status, {});
  return response.json();
}

// The one model: its name, its draft model, and the presets.
export async function model() {
  return (await ask("v1/models")).data[0];
}


// Adds a file as a document; the server reads its text by the extension of its name.
export const addDocument = (name, content) =>
  ask("v1/tandem/documents", { name, content, encoding: "base64" });

// The chunks of a streamed answer, until it ends. Throws ApiError, also for one that breaks off.
export async function* stream(body, signal) {
  const response = await send("v1/chat/completions", { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  let complete = false;
  try {
    for (;;) {
      const { done, value } = await read(reader);
      if (done && complete) return;
      if (done) throw new ApiError(0, { code: "broke_off" });
      const events = (unread + value).split("\n\n");
      unread = events.pop();
      for (const event of events) {
        if (!event.startsWith("data: ")) continue;
        const told = event.slice(6);
        if (told === "[DONE]") {
          complete = true;
          continue;
        }
        const chunk = JSON.parse(told);
        if (chunk.error) throw new ApiError(0, chunk.error);
        yield chunk.choices[0];
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// A connection that is lost is an error of the browser's, in the browser's words.
async function read(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, { code: "broke_off" });
  }
}

const ask = async (path, body) => (await send(path, body)).json();

async function send(path, body, signal) {
  const headers = {};
  if (hasKey()) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY)}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: body === undefined ? "GET" : "POST",
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  if (response.ok) return response;
  let error = {};
  try {
    error = (await response.json()).error;
  } catch {
    // something before the server answered
  }
  throw new ApiError(response.status, error, Number(response.headers.get("Retry-After")) || 0);
}

const unreachable = () => new ApiError(0, { code: "unreachable" });
