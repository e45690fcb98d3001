// The HTTP API, as this page uses it. The key is kept for this tab alone.

const KEY = "tandem-key";

export class ApiError extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.code = error.code;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;
export const setKey = (key) =>
  key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY);

export async function features() {
  return (await fetch("/page/features.json")).json();
}

// The one model: its name, its draft model, and the presets.
export async function model() {
  return (await ask("/v1/models")).data[0];
}

export const link = (change) => ask("/v1/tandem/link", change);

export const addDocument = (name, content) => ask("/v1/tandem/documents", { name, content });

// The chunks of a streamed answer, until it ends. Throws ApiError, also for one that breaks off.
export async function* stream(body, signal) {
  const response = await send("/v1/chat/completions", { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let unread = "";
  let complete = false;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done && complete) return;
      if (done) throw new ApiError(0, { message: "The answer broke off: the connection was lost." });
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
    throw new ApiError(0, { message: "The server cannot be reached." });
  }
  if (response.ok) return response;
  let error = { message: `The server answered ${response.status}.` };
  try {
    error = (await response.json()).error;
  } catch {
    // something before the server answered
  }
  throw new ApiError(response.status, error);
}
