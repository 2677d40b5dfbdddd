"""A bare page that hosts views: the smallest host that the interface of a view allows."""

import functools
import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VIEWS = Path(__file__).parents[1] / "jupyter_mgpu" / "widgets" / "views"
THEMES = Path(sys.prefix) / "share" / "jupyter" / "lab" / "themes" / "@jupyterlab"
# The first draws no windows of a desktop that nobody sees: a page costs it a quarter.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Views</title>
<link rel="icon" href="data:,"><link rel="stylesheet" href="views.css"></head>
<body><main></main><script type="module">
class Model {
  constructor(state, strings) { this.values = { state, strings }; this.heard = []; this.sent = []; }
  get(name) { return this.values[name]; }
  set(state) { this.values.state = state; this.emit("change:state"); }
  on(event, heard) { this.heard.push([event, heard]); }
  off(event, heard) { this.heard = this.heard.filter(([a, b]) => a !== event || b !== heard); }
  send(message) { this.sent.push(message); }
  emit(event, ...values) {
    for (const [name, heard] of this.heard) if (name === event) heard(...values);
  }
}
window.models = {};
window.cleanups = {};
window.mount = async (name, state, { key = name, strings, from } = {}) => {
  const view = (await import(from ?? `./${name}.js`)).default;
  const el = document.createElement("div");
  el.id = key;
  document.querySelector("main").append(el);
  models[key] = new Model(state, strings);
  cleanups[key] = view.render({ model: models[key], el });
  await laidOut(el);
};
// A chart draws when its width is observed, which is before this in a frame, with any clock.
const laidOut = (el) => new Promise((done) => new IntersectionObserver((_, observer) => {
  observer.disconnect();
  done();
}).observe(el));
window.change = (name, state) => new Promise((drawn) => {
  models[name].set(state);
  requestAnimationFrame(() => requestAnimationFrame(drawn));
});
window.ready = true;
</script></body></html>"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE.encode())

    def log_message(self, *_values: Any) -> None:
        """Say nothing: pytest shows only what fails."""


@contextmanager
def serve(folder: Path = VIEWS) -> Iterator[str]:
    """Serve the views and the page; gives its address."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class Views:
    """The page in a browser."""

    def __init__(self, tab: Any, url: str) -> None:
        self.tab = tab
        self.errors: list[str] = []
        tab.on("pageerror", lambda error: self.errors.append(str(error)))
        tab.on(
            "console",
            lambda line: self.errors.append(line.text) if line.type == "error" else None,
        )
        tab.goto(url)
        tab.wait_for_function("window.ready")

    def use_theme(self, name: str) -> None:
        """Give the page the variables of a theme of JupyterLab: light, dark."""
        style = (THEMES / f"theme-{name}-extension" / "index.css").read_text(encoding="utf-8")
        self.tab.add_style_tag(content=style)
        self.tab.evaluate(
            """isLight => {
                document.body.dataset.jpThemeLight = isLight;
                document.body.style.background = "var(--jp-layout-color0)";
            }""",
            "true" if "light" in name else "false",
        )

    def mount(self, name: str, state: Any, **options: Any) -> Any:
        """Show a view, and wait until it is drawn; returns where it is."""
        self.tab.evaluate(
            "([name, state, options]) => mount(name, state, options)", [name, state, options]
        )
        return self.tab.locator(f"#{options.get('key', name)}")

    def change(self, name: str, state: Any) -> None:
        """Give a view a new state, and wait until it is drawn."""
        self.tab.evaluate("([name, state]) => change(name, state)", [name, state])

    def sent(self, name: str) -> list[dict[str, Any]]:
        return list(self.tab.evaluate("name => models[name].sent", name))

    def answer(self, name: str, **done: Any) -> None:
        self.tab.evaluate(
            "([name, done]) => models[name].emit('msg:custom', { done })", [name, done]
        )
