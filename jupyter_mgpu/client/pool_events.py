"""What happens to the pool itself: engines that die and are replaced, warnings, its end."""

from collections.abc import Callable

from jupyter_mgpu.owner.pool_owner import PoolOwner
from jupyter_mgpu.sending import Sender
from jupyter_mgpu.wire import Header


class PoolEvents:
    """Tells the user what happens to a pool, and its sender which names are lost.

    Args:
        owner: The pool's owner.
        sender: What knows the names on the engines.
        say: Called with each sentence that the user should read.
        on_end: Called when the pool ends without having been asked to, with the reason, and
            whether its owner could not end its tasks.
    """

    def __init__(
        self,
        owner: PoolOwner,
        sender: Sender,
        say: Callable[[str], None],
        on_end: Callable[[str, bool], None],
    ) -> None:
        self._owner = owner
        self._sender = sender
        self._say = say
        self._on_end = on_end
        self._died: dict[int, str] = {}
        self._handlers: dict[str, Callable[[Header], None]] = {
            "engine_died": self._engine_died,
            "engine_replaced": self._engine_replaced,
            "engine_lost": self._engine_lost,
            "pool_ended": self._pool_ended,
            "notice": lambda header: say(header["message"]),
            "idle_warning": self._idle_warning,
            "unkillable": self._unkillable,
        }

    def handle(self, header: Header) -> bool:
        """Take an event; False if it is not one of the pool itself."""
        handler = self._handlers.get(header["op"])
        if handler is not None:
            handler(header)
        return handler is not None

    def _engine_died(self, header: Header) -> None:
        message = header["message"]
        if header["was_busy"]:  # its cell or task tells all of it
            message = message.partition("\n")[0]
        self._died[header["rank"]] = message
        self._sender.forget_rank(header["rank"])

    def _engine_replaced(self, header: Header) -> None:
        rank = header["rank"]
        message = self._died.pop(rank, "")
        lost = self._sender.lost_names(rank)
        tail = f" Lost there: {', '.join(sorted(lost))}." if lost else ""
        device = self._owner.device(rank)
        joint = "\n" if "\n" in message else " "
        self._say(f"{message.rstrip()}{joint}A new engine runs on rank {rank} ({device}).{tail}")

    def _engine_lost(self, header: Header) -> None:
        self._say(f"Rank {header['rank']} has no engine: {header['message']}")

    def _pool_ended(self, header: Header) -> None:
        reason = header["reason"]
        if reason == "idle":
            self._say(f"The pool {self._owner.name!r} was ended because nothing used it.")
        is_lost = header.get("is_lost", False)
        if is_lost:
            self._say(f"The pool {self._owner.name!r} has ended: {reason}")
        if reason != "stopped":
            self._on_end(reason, is_lost)

    def _idle_warning(self, header: Header) -> None:
        self._say(
            f"The pool {self._owner.name!r} ends in {header['seconds'] / 60:.0f} min because "
            "nothing uses it. Any use keeps it; `%parpool --idle 0` keeps it for good."
        )

    def _unkillable(self, header: Header) -> None:
        self._say(f"Processes {header['pids']} could not be ended: they hang in the driver.")
