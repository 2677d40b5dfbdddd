"""The extension that a Jupyter server loads."""

from typing import Any

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, validate

from jupyter_mgpu.monitor import DEFAULT_S, clamp_interval
from jupyter_mgpu.server.handlers import ROUTES, SETTING, Parts, UnknownHandler
from jupyter_mgpu.server.hub import Hub
from jupyter_mgpu.server.kernels import Kernels
from jupyter_mgpu.server.stream import StreamHandler

ADDRESS = "jupyter-mgpu"


class MgpuExtension(ExtensionApp):
    """GPUs, pools and tasks of this machine's user, for the sidebar."""

    name = "jupyter_mgpu"
    interval_s = Float(
        DEFAULT_S,
        help="Seconds between two samples, where a client wants nothing else: 0.5 to 60.",
    ).tag(config=True)

    @validate("interval_s")
    def _check_interval(self, proposal: dict[str, Any]) -> float:
        seconds, note = clamp_interval(proposal["value"])
        if note is not None:  # a wrong number must not cost the whole extension
            self.log.warning("MgpuExtension.interval_s: %s", note)
        return seconds

    def initialize_settings(self) -> None:
        """Make what the handlers share."""
        self._hub = Hub(Kernels(self.serverapp.web_app.settings), self.interval_s, self.log)
        self.settings[SETTING] = Parts(self._hub)

    def initialize_handlers(self) -> None:
        """Add the routes; the server puts its base_url before them."""
        self.handlers += [(f"/{ADDRESS}/stream", StreamHandler)]
        self.handlers += [(f"/{ADDRESS}/{pattern}", *route) for pattern, *route in ROUTES]
        self.handlers += [(f"/{ADDRESS}(?:/.*)?", UnknownHandler)]

    async def stop_extension(self) -> None:
        """End with the server."""
        await self._hub.close()
