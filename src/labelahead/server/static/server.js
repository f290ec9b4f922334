// Requests to the server. A GET is retried until it is answered. An answer is sent with the same key
// until the server confirms that it is stored, so that it is recorded exactly once.

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}
export class Unable extends Error {} // a full disk or a locked file: not the fault of the request, so it is retried

const PENDING = "labelahead-pending";
const PAUSES = [400, 800, 1600, 3000]; // milliseconds; the last one is repeated
const trouble = document.getElementById("trouble");
const troubles = new Map(); // source of a problem -> its message

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

export function showProblem(source, message) { // message null: the problem is solved
  if (message) troubles.set(source, message); else troubles.delete(source);
  // An unsaved answer is more important than any other problem.
  const shown = troubles.get("answer") ?? [...troubles.values()].at(-1) ?? "";
  if (trouble.textContent !== shown) trouble.textContent = shown;
  trouble.hidden = !shown;
}

export function newKey() {
  if (globalThis.crypto?.randomUUID) return crypto.randomUUID(); // only available in a secure context
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((b) => b.toString(16).padStart(2, "0")).join("");
}

async function request(path, options = {}, read = (response) => response.json()) {
  const response = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  let body = null;
  try { body = await (response.ok ? read(response) : response.json()); } catch { /* reported below */ }
  if ([503, 507].includes(response.status) && body?.error) throw new Unable(body.error);
  if (response.status >= 500) throw new Error(`the server failed (${response.status})`);
  if (!response.ok) throw new Refused(response.status, refusal(response.status, body));
  if (body === null) throw new Error("the server's answer was cut off");
  return body;
}

function refusal(status, body) {
  if (status === 401 && /not logged in/.test(body?.error ?? "")) { location.assign("/login"); return "You are not logged in."; }
  if (status === 401) return "The server requires a token: open the full URL that the terminal shows.";
  return body?.error ?? `The server rejected the request (${status}).`;
}

const post = (path, body) => request(path, {
  method: "POST", body: JSON.stringify(body),
  headers: { "Content-Type": "application/json", "X-Labelahead": "1" },
});

// The message shown while a request is retried; unsaved: describes an answer that is not saved yet.
export function troubleWith(error, unsaved = "") {
  if (!(error instanceof Unable)) return unsaved ? `${unsaved}. Retrying …` : GONE;
  const message = unsaved ? `${unsaved}: ${error.message}` : error.message[0].toUpperCase() + error.message.slice(1);
  return `${message}. Retrying automatically …`;
}

async function untilAnswered(source, unsaved, attempt) {
  for (let n = 0; ; n++) {
    try {
      const found = await attempt();
      showProblem(source, null);
      showProblem("poll", null);
      return found;
    } catch (error) {
      if (error instanceof Refused) { showProblem(source, null); throw error; }
      showProblem(source, troubleWith(error, unsaved));
      await wait(PAUSES[Math.min(n, PAUSES.length - 1)]);
    }
  }
}

const GONE = "The server does not answer. Is “labelahead label” still running? Retrying …";

export const get = (path) => untilAnswered(path, "", () => request(path));
export const getOnce = (path) => request(path); // for panels: they may fail silently
export const send = (path, body) => untilAnswered(path, "", () => post(path, body));

// ---- answers --------------------------------------------------------------------------------

function keep(answer) {
  try {
    if (answer) sessionStorage.setItem(PENDING, JSON.stringify(answer));
    else sessionStorage.removeItem(PENDING);
  } catch { /* storage may be forbidden; then a reload before saving shows the query again */ }
}

export function readPending() { // an answer that a reload interrupted
  try { return JSON.parse(sessionStorage.getItem(PENDING)); } catch { return null; }
}

let unsaved = false;
addEventListener("beforeunload", (event) => { if (unsaved) event.preventDefault(); });

export async function sendAnswer(answer) {
  const whole = { key: newKey(), ...answer };
  keep(whole);
  try {
    return await untilAnswered("answer", "Your answer is not saved yet", async () => {
      try { return await post(whole.positions ? "/api/confirmations" : "/api/answers", whole); } catch (error) {
        unsaved = !(error instanceof Refused);
        throw error;
      }
    });
  } finally { unsaved = false; keep(null); }
}

export const getFile = (path) => request(path, {}, async (response) => ({
  blob: await response.blob(), name: response.headers.get("Content-Disposition")?.match(/filename="([^"]+)"/)?.[1] ?? "",
}));

export const sendFile = (form, file) => request(`/api/import?form=${form}`, {
  method: "POST", body: file,
  headers: { "Content-Type": "application/octet-stream", "X-Labelahead": "1" },
});
