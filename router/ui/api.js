// Requests to this router. Addresses are relative to the page, so that it may be behind a prefix.

// In memory only: not in storage, not in an address, not in what is copied.
let key = "";

export function setKey(value) {
  key = value.trim();
}

export const hasKey = () => key !== "";

// What an API refused: all of it, for the reader.
export class ApiError extends Error {
  constructor(status, body, requestId) {
    let error = null;
    try {
      error = JSON.parse(body).error;
    } catch {
      // not the router's own words: a proxy's
    }
    super(error?.message ?? body.slice(0, 2000));
    this.status = status;
    this.field = error?.param ?? "";
    this.type = error?.type ?? "";
    this.code = error?.code ?? "";
    this.body = body;
    this.requestId = requestId ?? "";
  }
}

export async function request(path, options = {}) {
  const headers = {...options.headers};
  if (key) headers.Authorization = `Bearer ${key}`;
  const answer = await fetch(`../${path}`, {...options, headers, credentials: "omit", cache: "no-store"});
  if (!answer.ok) throw new ApiError(answer.status, await answer.text(), answer.headers.get("X-Request-Id"));
  return answer;
}

export const getJson = async (path, options) => (await request(path, options)).json();

// The payloads of a stream of server-sent events, up to [DONE].
async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  while (true) {
    const {value, done} = await reader.read();
    if (done) throw new Error("The connection ended before the answer did.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim());
      if (data.join("") === "[DONE]") return;
      if (data.length > 0) yield JSON.parse(data.join("\n"));
    }
  }
}

// Calls onChunk with each chunk of a streamed chat completion.
export async function streamChat(body, signal, onChunk) {
  const answer = await request("v1/chat/completions", {
    method: "POST", signal, body: JSON.stringify(body), headers: {"Content-Type": "application/json"},
  });
  const requestId = answer.headers.get("X-Request-Id");
  for await (const chunk of events(answer)) {
    if (chunk.error) throw new ApiError(answer.status, JSON.stringify(chunk), requestId);
    onChunk(chunk);
  }
}

// The same request for a shell. The key stays where the reader keeps it.
export function asCurl(body) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const address = new URL("../v1/chat/completions", document.baseURI).href;
  const header = key ? " \\\n  -H \"Authorization: Bearer $FLOTILLA_API_KEY\"" : "";
  return `curl -N '${address}'${header} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'`;
}
