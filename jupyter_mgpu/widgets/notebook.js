// @ts-check
/**
 * What a notebook holds of a view that a widget draws. JupyterLab and Notebook 7 let a widget reach its
 * notebook; elsewhere nothing of this is done.
 *
 * A saved widget without its kernel reads "model not found", though there is HTML beside it. So the file
 * gets the view without the widget, and a page that is loaded again while the kernel lives puts it back.
 */

const VIEW = "application/vnd.jupyter-mgpu.view.v1+json";
const WIDGET = "application/vnd.jupyter.widget-view+json";
// JupyterLab's own mark of what the file is to hold and the page has already.
const SILENTLY = "silent-change";

/** What is saved of each view, by its id, for each notebook of the page. */
const kept = new WeakMap();

/** Tells whether a view can renew what its notebook holds. */
export function canKeep(model) {
  const context = model.widget_manager?.context;
  return Boolean(context?.saveState && context.model?.sharedModel?.cells);
}

/** Keeps what is saved of a view in step with it; returns what ends that. */
export function keep(model) {
  if (!canKeep(model)) return undefined;
  const { context } = model.widget_manager;
  const { id, final } = model.get("state");
  if (!kept.has(context)) {
    kept.set(context, new Map());
    context.saveState.connect((_, state) => state === "started" && withoutWidgets(context));
  }
  const onMessage = ({ bundle }) => {
    if (!bundle) return;
    kept.get(context).set(id, bundle);
    // Of several pages that show it only the one that is worked in saves: they would overwrite one another.
    if (document.hasFocus()) context.model.dirty = true;
    if (bundle[VIEW].final) show(context, id, () => bundle);
  };
  model.on("msg:custom", onMessage);
  const revived = show(context, id, data => withWidget(data, id));
  if (revived && final) model.send({ ask: "bundle" }); // it has ended while nobody looked
  return () => model.off("msg:custom", onMessage);
}

function withWidget(data, id) {
  if (WIDGET in data || data[VIEW].final) return null;
  return { ...data, [WIDGET]: { version_major: 2, version_minor: 0, model_id: id } };
}

/** Changes what the page shows of a view, where it shows it; tells whether it did. */
function show(context, id, change) {
  let hasChanged = false;
  for (const cell of context.model.cells) {
    for (let place = 0; place < (cell.outputs?.length ?? 0); place++) {
      const output = cell.outputs.get(place);
      if (output.data?.[VIEW]?.id !== id) continue;
      const data = change(output.data);
      if (!data) continue;
      output.setData({ data });
      hasChanged = true;
    }
  }
  return hasChanged;
}

/** Lets the file hold the newest bundles, and no widget; what the page shows is not touched. */
function withoutWidgets(context) {
  for (const cell of context.model.sharedModel.cells) {
    if (cell.cell_type !== "code") continue;
    cell.getOutputs().forEach((output, place) => {
      const view = output.data?.[VIEW];
      if (!view) return;
      const bundle = kept.get(context).get(view.id);
      const isNewer = bundle && bundle[VIEW].at > view.at;
      if (!isNewer && !(WIDGET in output.data)) return;
      const { [WIDGET]: widget, ...data } = isNewer ? bundle : output.data;
      cell.updateOutputs(place, place + 1, [{ ...output, data }], SILENTLY);
    });
  }
}
