"""What is to be seen in a notebook: pools, GPUs, tasks, trainings, live and in the saved file.

    states      what each kind of view draws, as JSON
    curves      curves of any length in a bounded number of points
    ..._source  where these states come from, and what the buttons do
    live_view   one view in one cell; pages: who looks at it
    registry    all views, and the thread that updates them
    widget_host, comm_host, static      what draws them: a widget, our MIME type, HTML and text
    views       the JavaScript

`register` is what `%load_ext` calls.
"""

from jupyter_mgpu.widgets.formatters import register

__all__ = ["register"]
