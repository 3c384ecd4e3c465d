// The server's HTTP side: what it can do, whether it is ready, keys.

const KEY = "bargein.key";

export async function capabilities() {
  const reply = await fetch("/v1/realtime/capabilities", { cache: "no-store" });
  if (!reply.ok) throw new Error(`the server answered ${reply.status}`);
  return reply.json();
}

export const heldKey = () => sessionStorage.getItem(KEY) || "";
export const holdKey = (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY));

export function withKey(key, headers = {}) {
  return key ? { ...headers, Authorization: `Bearer ${key}` } : headers;
}

/** The message of a refusal, whatever shape it has. */
export async function reason(reply) {
  try {
    return (await reply.json()).error.message;
  } catch {
    return `the server answered ${reply.status}`;
  }
}

export class Refusal extends Error {
  constructor(status, message, retryAfter) {
    super(message);
    Object.assign(this, { status, retryAfter });
  }
}

/** A short-lived key for one call, from the real one. */
export async function ephemeralKey(key) {
  const reply = await fetch("/v1/realtime/client_secrets", {
    method: "POST",
    headers: withKey(key, { "Content-Type": "application/json" }),
    body: "{}",
  });
  if (!reply.ok) throw new Refusal(reply.status, await reason(reply));
  return (await reply.json()).value;
}
