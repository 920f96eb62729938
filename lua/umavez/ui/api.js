// api: the door's answers. A session that has ended is told to whoever listens.

export class Refused extends Error {
  constructor(status, problem, retryAfter) {
    super(problem.detail || problem.title || String(status));
    this.status = status;
    this.retryAfter = Number(retryAfter) || 0;
  }
}

export const events = new EventTarget();
let csrf = "";

async function answer(response) {
  const type = response.headers.get("Content-Type") || "";
  const body = type.includes("json") ? await response.json() : {};
  if (response.ok) return body;
  if (response.status === 401 && !response.url.endsWith("/login")) events.dispatchEvent(new Event("ended"));
  throw new Refused(response.status, body, response.headers.get("Retry-After"));
}

async function post(name, body) {
  return answer(await fetch(`api/${name}`, {
    method: "POST", credentials: "same-origin", redirect: "error",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf }, body: JSON.stringify(body),
  }));
}

function begin(session) {
  csrf = session.csrf;
  return session;
}

/** What a page shows; params without a value are left out. */
export async function read(page, params = {}, signal) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return answer(await fetch(`api/${page}?${query}`, { credentials: "same-origin", redirect: "error", signal }));
}

export const session = async () => begin(await read("session"));
export const login = async (token) => begin(await post("login", { token }));
export const logout = () => post("logout", {});
export const act = (action, target, reason) => post("act", { action, target, reason });
