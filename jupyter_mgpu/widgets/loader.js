// @ts-check
/**
 * Runs a view in a widget. The views' code is in one model per kernel, so that a notebook with many
 * views has it once. Tells the kernel whether this page shows the view, and the reader when the kernel
 * is gone.
 */

const PREFIX = "IPY_MODEL_";
const page = crypto.randomUUID?.() ?? String(Math.random());

/** Returns the address of one of the views' files; what it imports is replaced by addresses, too. */
function addressOf(name, files, addresses) {
  if (!addresses.has(name)) {
    const text = files[name].replace(
      /(from ")\.\/(\w+\.js)(")/g,
      (_, before, other, after) => before + addressOf(other, files, addresses) + after
    );
    const blob = new Blob([text], { type: "text/javascript" });
    addresses.set(name, URL.createObjectURL(blob));
  }
  return addresses.get(name);
}

/** The model with the code of all views; its addresses are made once. */
async function codeOf(model) {
  const code = await model.widget_manager.get_model(model.get("code").slice(PREFIX.length));
  code.mgpuAddresses ??= new Map();
  return code;
}

/** Imports one of the views' files. */
function load(name, code) {
  return import(addressOf(name, code.get("texts").files, code.mgpuAddresses));
}

/** Puts the views' styles into the page, once for each version of them. */
function addStyles(text) {
  const id = "mgpu-views-styles";
  const found = document.getElementById(id);
  if (found?.textContent === text) return;
  const style = found ?? document.head.appendChild(document.createElement("style"));
  style.id = id;
  style.textContent = text;
}

/** The model as a view sees it: its state, with a notice instead of buttons when the kernel is gone. */
function viewModel(model, code) {
  const listeners = new Map();
  return {
    get: name => (name === "state" && code.comm_live === false ? frozen(model) : model.get(name)),
    on: (name, listener) => {
      model.on(name, listener);
      if (name === "change:state") {
        listeners.set(listener, () => listener());
        code.on("comm_live_update", listeners.get(listener));
      }
    },
    off: (name, listener) => {
      model.off(name, listener);
      if (listeners.has(listener)) code.off("comm_live_update", listeners.get(listener));
      listeners.delete(listener);
    },
    send: content => code.comm_live !== false && model.send(content)
  };
}

function frozen(model) {
  const state = model.get("state");
  if (state.final) return state;
  const since = new Date(state.at * 1000).toLocaleTimeString();
  const notice = `Not live: the kernel has ended. This is the state of ${since}.`;
  return { ...state, final: true, notice };
}

export default {
  async initialize({ model }) {
    const notebook = await load("notebook.js", await codeOf(model));
    return notebook.keep(model);
  },
  async render({ model, el }) {
    const code = await codeOf(model);
    addStyles(code.get("texts").styles);
    const view = await load(`${model.get("state").kind}.js`, code);
    const { canKeep } = await load("notebook.js", code);
    const cleanup = await view.default.render({ model: viewModel(model, code), el });

    const say = visible => {
      if (code.comm_live !== false) model.send({ visible, page, keeps: canKeep(model) });
    };
    const tell = () => say(el.isConnected && document.visibilityState === "visible");
    const onMessage = content => content.ping && tell();
    document.addEventListener("visibilitychange", tell);
    model.on("msg:custom", onMessage);
    say(document.visibilityState === "visible");
    return () => {
      document.removeEventListener("visibilitychange", tell);
      model.off("msg:custom", onMessage);
      say(false);
      cleanup?.();
    };
  }
};
