// @ts-check
/**
 * Asks a pool through the page's own Jupyter server. That needs neither the kernel nor a comm, so it works
 * while a cell runs in any version of the kernel.
 */

/** @typedef {{ pool: string, task?: string }} Place how a server finds what a view shows */
/** @typedef {{ action: string, rank?: number|null }} Asked */
/** @typedef {{ ok: boolean, words: string }} Done */

const ADDRESS = "jupyter-mgpu/pools";
const WAIT_MS = 8000;
const OWNER_SILENT = 504;

/** The route of each action, and what it is told. @type {Record<string, (asked: Asked, place: Place) => [string, object]>} */
const ROUTES = {
  interrupt: (_, { task }) => ["interrupt", task ? { task } : {}],
  restart: ({ rank }) => ["restart", typeof rank === "number" ? { ranks: [rank] } : {}],
  stop: () => ["stop", {}],
  cancel: (_, { task }) => ["cancel", { task }],
  request_stop: (_, { task }) => ["request-stop", { task }],
  stop_after_epoch: (_, { task }) => ["request-stop", { task, after: "epoch" }],
};

/**
 * @param {Asked} asked
 * @param {Place|null|undefined} place
 * @returns {Promise<Done|null>} null where somebody else has to be asked: there is no such server, it has
 *   no part of ours, or does not reach the pool
 */
export async function askServer(asked, place) {
  const server = serverOf(document);
  const route = ROUTES[asked.action];
  if (!server || !place || !route) return null;
  const [name, body] = route(asked, place);
  try {
    const response = await fetch(new URL(`${ADDRESS}/${encodeURIComponent(place.pool)}/${name}`, server.url), {
      method: "POST", credentials: "same-origin", headers: server.headers, body: JSON.stringify(body),
      signal: AbortSignal.timeout(WAIT_MS),
    });
    const answer = await response.json();
    if (response.ok) return { ok: true, words: answer.words };
    // It was asked, and does it when it goes on: nobody else is to ask once more.
    return response.status === OWNER_SILENT ? { ok: false, words: answer.message } : null;
  } catch (error) {
    // What it was asked for may still come about.
    return /** @type {Error} */ (error).name === "TimeoutError" ? { ok: false, words: "" } : null;
  }
}

/** The server of a page of JupyterLab or Notebook 7, and what it wants to be told. @param {Document} page */
function serverOf(page) {
  const config = page.getElementById("jupyter-config-data")?.textContent;
  if (!config) return null;
  const { baseUrl, token } = JSON.parse(config);
  if (typeof baseUrl !== "string") return null;
  const url = new URL(baseUrl.endsWith("/") ? baseUrl : `${baseUrl}/`, page.baseURI);
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(page.cookie)?.[1];
  /** @type {Record<string, string>} */
  const headers = { "Content-Type": "application/json" };
  if (xsrf) headers["X-XSRFToken"] = decodeURIComponent(xsrf);
  if (token && url.origin === new URL(page.baseURI).origin) headers.Authorization = `token ${token}`;
  return { url, headers };
}
