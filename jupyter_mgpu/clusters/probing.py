"""Runs the probe on another host and asks it."""

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from jupyter_mgpu.clusters import probe
from jupyter_mgpu.errors import ClusterError

_ENDING_S = 5.0


def script(*requests: Mapping[str, Any]) -> str:
    """Return the standard input that has the probe answer some requests and end."""
    lines = [_program(), *requests]
    return "".join(json.dumps(line) + "\n" for line in lines)


def answers(output: str) -> list[Any]:
    """Return what the probe answered, out of all that came from there."""
    return [_answer(line) for line in output.splitlines() if line.startswith(probe.MARK)]


def _program() -> str:
    return Path(probe.__file__).read_text(encoding="utf-8")


def _answer(line: str) -> Any:
    return json.loads(line.removeprefix(probe.MARK))


class ProbeError(ClusterError):
    """The probe did not run, or did not answer.

    Attributes:
        exit_code: How the command ended; None if it had to be killed.
        output: What it said on its standard error.
    """

    def __init__(self, message: str, *, exit_code: int | None, output: str) -> None:
        self.exit_code = exit_code
        self.output = output
        super().__init__(message)


class Probe:
    """A running probe.

    Args:
        command: What runs a Python program of one argument there: its last words are that
            interpreter, "-c" and the program.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_answers, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        self._write(_program())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, operation: str, wait_s: float, **request: Any) -> Any:
        """Ask the probe, and wait for its answer.

        Raises:
            ProbeError: If it does not answer in time, or has ended.
        """
        self._write({"op": operation, **request})
        try:
            answer = self._answers.get(timeout=wait_s)
        except queue.Empty:
            self._process.kill()
            raise ProbeError(
                f"There was no answer in {wait_s:g} s.", exit_code=None, output=self._said()
            ) from None
        if answer is None:
            code, said = self._process.wait(), self._said()
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise ProbeError(
                f"It ended with exit code {code}: {last[0]}", exit_code=code, output=said
            )
        return answer

    def close(self) -> None:
        """End the probe."""
        with contextlib.suppress(OSError):
            self._pipe().close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for reader in self._readers:
            reader.join(_ENDING_S)

    def _pipe(self) -> Any:
        return self._process.stdin

    def _write(self, value: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended, which its output tells
            self._pipe().write(json.dumps(value) + "\n")
            self._pipe().flush()

    def _read_answers(self) -> None:
        for line in self._process.stdout or ():
            if line.startswith(probe.MARK):
                self._answers.put(_answer(line))
        self._answers.put(None)

    def _read_errors(self) -> None:
        self._errors.extend(self._process.stderr or ())

    def _said(self) -> str:
        self._readers[1].join(_ENDING_S)
        return "".join(self._errors)
