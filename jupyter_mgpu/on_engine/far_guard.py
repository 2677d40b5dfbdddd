"""The guard of an engine whose owner is on another host: it starts the engine, watches and ends it.

    launcher -> guard -- fork --> engine            the engine ends with its guard, whatever ends it
    owner   <-- lifeline (zmq, CURVE) --> guard     hello, beats; kill; how the engine ended

It works while the engine holds the GIL, hears of the engine's end at once, as its parent, and holds
the locks of its leases, and large data of the owner for all engines of its host. While the owner
wants readings of this host, it passes them on. Without the owner for `lifeline.AWAY_S` it ends the
engine and itself.
"""

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import tempfile
import time
import traceback
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from jupyter_mgpu import cuda, curve
from jupyter_mgpu.daemon_thread import call_in_thread
from jupyter_mgpu.errors import MgpuError
from jupyter_mgpu.on_engine import guard, lifeline, remote_leases, scheduled_gpus
from jupyter_mgpu.on_engine.host_sampler import HostSampler
from jupyter_mgpu.shared_memory import Holder
from jupyter_mgpu.wire import Frame, Header, decode, encode

LAST_BYTES = 8192
LOG_BYTES = 2**18
"""So much of the rank's log goes to the owner with each beat."""
LAST_LOG_BYTES = 2**20
"""So much of what it has not got yet follows at the end."""
_PR_SET_PDEATHSIG = 1
_EXITS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def install() -> None:
    """Go on as the engine, in a child of this process; that stays behind as its guard."""
    folder = Path(tempfile.mkdtemp(prefix="mgpu-"))
    profile = folder / "profile"
    for part in ("security", "log", "pid", "startup"):
        (profile / part).mkdir(parents=True)
    os.environ["IPP_PROFILE_DIR"] = str(profile)
    os.environ["MGPU_LOG"] = str(folder / "rank.log")
    me = os.getpid()
    engine = os.fork()
    if engine:
        _guard(engine, folder)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != me:
        os._exit(1)  # it died before
    os.setsid()
    output = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in (output, null):
        os.close(descriptor)
    with contextlib.suppress(OSError):
        os.chdir(Path(os.environ.get("MGPU_FOLDER") or "~").expanduser())


def _guard(engine: int, folder: Path) -> None:
    code = 0
    try:
        _Guard(engine, folder).run()
    except BaseException:  # noqa: BLE001 - the owner could not be told: the launcher may keep it
        traceback.print_exc()
        code = 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(code)


class _Guard:
    def __init__(self, engine: int, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self._ended = os.pidfd_open(engine)
        self._pages = Path(f"/proc/{engine}/statm")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._line = self._context.socket(zmq.DEALER)
        self._line.identity = f"guard:{os.environ['MGPU_RANK']}.{os.environ['MGPU_START']}".encode()
        self._line.linger = int(lifeline.BEAT_S * 1000)
        self._line.heartbeat_ivl = int(lifeline.BEAT_S * 1000)
        self._line.heartbeat_timeout = int(lifeline.PONG_S * 1000)
        self._line.connect_timeout = int(2 * lifeline.BEAT_S * 1000)
        curve.use_client_keys(self._line, os.environ[curve.KEYS_VARIABLE])
        self._monitor = self._line.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        )
        self._away_since: float | None = None
        self._is_asked_to_end = False
        self._refusal: str | None = None
        self._log_sent = 0
        self._holder = Holder()
        self._proof: Future[cuda.Answer] | None = None
        self._proven = os.eventfd(0)
        self._sampler = HostSampler(folder / "sampler.log")
        self._poller = zmq.Poller()
        self._next_beat_s = time.monotonic() + lifeline.BEAT_S

    def run(self) -> None:
        """Watch until the engine has ended, or has to be; tell the owner what this fails with."""
        url = os.environ[lifeline.URL_VARIABLE]
        self._line.ipv6 = "[" in url
        self._line.connect(url)
        try:
            self._take_leases()
            self._away_since = time.monotonic()  # a lease may have had to be waited for
            self._watch()
        except BaseException as error:  # noqa: BLE001 - its launcher would end other ranks as well
            with contextlib.suppress(OSError):
                os.killpg(self._engine, signal.SIGKILL)
            why = traceback.format_exception_only(error)[-1].strip()
            self._say("failed", why=why, words=traceback.format_exc())
        self._line.close()
        self._monitor.close()
        self._context.term()  # waits until all is sent, at most for the line's linger

    def _watch(self) -> None:
        self._ask_for_proof()
        for signum in _EXITS:  # a scheduler that ends the job, or an administrator
            signal.signal(signum, self._on_exit_signal)
        for watched in (self._line, self._monitor, self._ended, self._proven):
            self._poller.register(watched, zmq.POLLIN)
        while not self._is_over():
            ready = dict(self._poller.poll(int(lifeline.BEAT_S * 1000)))
            if self._monitor in ready:
                self._note_connection()
            if self._line in ready:
                self._obey()
            if self._proven in ready:
                self._tell_proof()
            if self._sampler.output in ready:
                self._pass_readings()
            if time.monotonic() >= self._next_beat_s:
                self._next_beat_s = time.monotonic() + lifeline.BEAT_S
                self._say("beat", rss_bytes=self._rss_bytes())
                self._send_log(LOG_BYTES)
        self._end_engine()

    def _take_leases(self) -> None:
        """Lease the engine's GPUs; where others have them by now, it may not start."""
        wish = os.environ.get(remote_leases.VARIABLE)
        if wish:
            try:
                self._claim = remote_leases.take(json.loads(wish))
            except MgpuError as error:
                self._refusal = str(error)

    def _ask_for_proof(self) -> None:
        """Ask CUDA, in a child with the engine's environment, which GPUs it shows."""
        if not (remote_leases.VARIABLE in os.environ or scheduled_gpus.num_gpus()):
            return
        environment = dict(os.environ)
        self._proof = call_in_thread(lambda: scheduled_gpus.find_out(environment), "mgpu-proof")
        self._proof.add_done_callback(lambda _: os.eventfd_write(self._proven, 1))

    def _tell_proof(self) -> None:
        os.eventfd_read(self._proven)
        if self._proof is not None:
            answer = self._proof.result()
            self._say("proof", uuids=answer.uuids, why=answer.why_unknown, labels=answer.labels)

    def _on_exit_signal(self, _signum: int, _frame: Any) -> None:
        self._is_asked_to_end = True

    def _is_over(self) -> bool:
        return self._is_cut_off() or self._is_asked_to_end or self._has_ended(0)

    def _is_cut_off(self) -> bool:
        away_s = 0.0 if self._away_since is None else time.monotonic() - self._away_since
        return away_s > lifeline.AWAY_S

    def _has_ended(self, timeout_s: float) -> bool:
        return bool(select.select([self._ended], [], [], timeout_s)[0])

    def _note_connection(self) -> None:
        event = recv_monitor_message(self._monitor)["event"]
        if event == zmq.EVENT_DISCONNECTED:
            self._away_since = self._away_since or time.monotonic()
        else:
            self._away_since = None
            if self._refusal is not None:
                self._say("refused", message=self._refusal)
                self._is_asked_to_end = True
            self._say(
                "hello",
                pid=self._engine,
                # Slurm may call a node otherwise than it calls itself.
                host=os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
                local_rank=os.environ["MGPU_LOCAL_RANK"],
                way=os.environ["MASTER_ADDR"],
            )

    def _obey(self) -> None:
        header, frames = decode(self._line.recv_multipart())
        if header["op"] == "kill":
            with contextlib.suppress(OSError):
                os.killpg(self._engine, signal.SIGKILL)
        elif header["op"] == "sample":
            self._ask_sampler(header)
        elif (answer := self._holder.obey(header, frames)) is not None:
            self._line.send_multipart(encode(answer))

    def _ask_sampler(self, header: Header) -> None:
        before = self._sampler.output
        try:
            self._sampler.ask({"pool": header["pool"], "engines": header["engines"]})
        except OSError as error:
            self._say("unread", why=f"its sampler cannot be started: {error}")
        if before is None and self._sampler.output is not None:
            self._poller.register(self._sampler.output, zmq.POLLIN)

    def _pass_readings(self) -> None:
        readings = self._sampler.readings()
        if readings is None:
            self._poller.unregister(self._sampler.output)
            if (why := self._sampler.take_end()) is not None:
                self._say("unread", why=why)
        for reading in readings or ():
            self._say("reading", [zlib.compress(reading)])

    def _end_engine(self) -> None:
        is_cut_off = self._is_cut_off() and not self._has_ended(0)
        if not self._has_ended(0):
            with contextlib.suppress(OSError):
                os.kill(self._engine, signal.SIGTERM)
            self._has_ended(guard.GRACE_MS / 1000)
        with contextlib.suppress(OSError):
            os.killpg(self._engine, signal.SIGKILL)  # DataLoader workers and the like as well
        _, status = os.waitpid(self._engine, 0)
        code = os.waitstatus_to_exitcode(status)
        # A scheduler signals engine and guard alike, in any order.
        asked = self._is_asked_to_end or code == -signal.SIGTERM
        self._send_log(LAST_LOG_BYTES)
        words = _read(self._folder / "output", -LAST_BYTES).decode(errors="replace")
        # Heard only by an owner that slept, or was stopped, while its host kept the connection.
        self._say("ended", code=code, words=words, asked=asked, is_cut_off=is_cut_off)

    def _say(self, operation: str, frames: Sequence[Frame] = (), **values: Any) -> None:
        self._line.send_multipart(encode({"op": operation, **values}, frames))

    def _rss_bytes(self) -> int | None:
        with contextlib.suppress(OSError, IndexError, ValueError):
            return int(self._pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return None

    def _send_log(self, size: int) -> None:
        """Send what is new in the rank's log; its file on this host goes with the engine."""
        text = _read(self._folder / "rank.log", size, self._log_sent)
        if text:
            self._log_sent += len(text)
            self._line.send_multipart(encode({"op": "log"}, [text]))


def _read(path: Path, size: int, start: int = 0) -> bytes:
    """Read so many bytes of a file from a place on; the last ones with a negative number."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        if size < 0:
            start = max(0, file.seek(0, os.SEEK_END) + size)
        file.seek(start)
        return file.read(abs(size))
    return b""
