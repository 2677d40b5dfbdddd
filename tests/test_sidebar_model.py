"""The sidebar's model: what needs no browser, and its connection to a real server."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_processes import TOKEN, RunningServer, running_server

from notebooks import wait_until

pytestmark = pytest.mark.usefixtures("own_runtime_folder")

FOLDER = Path(__file__).parents[1] / "labextension" / "tests"
NODE = Path(sys.executable).with_name("node")


def test_what_needs_no_browser() -> None:
    files = sorted(FOLDER.glob("*.test.mjs"))

    ran = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, check=False)

    assert len(files) >= 3
    assert ran.returncode == 0, ran.stdout + ran.stderr


class Follower:
    """A process that follows a server as the sidebar does."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self._process = process
        self._log = log

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def links(self) -> list[str]:
        return [line["link"] for line in self._lines() if "link" in line]

    def frames(self) -> list[str]:
        return [line["frame"] for line in self._lines() if "frame" in line]

    def wait_for(self, *links: str) -> None:
        wait_until(lambda: self.links()[-len(links) :] == list(links), 60, str(links))

    def _lines(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path, base_url="/a%40b/") as running:
        yield running


@contextlib.contextmanager
def following(server: RunningServer, log: Path, token: str = TOKEN) -> Iterator[Follower]:
    with log.open("w") as output:
        process = subprocess.Popen(
            [NODE, FOLDER / "follow.mjs", server.url, token],
            stdin=subprocess.PIPE,
            stdout=output,
            text=True,
        )
    yield Follower(process, log)
    process.stdin.close()
    assert process.wait(60) == 0


@pytest.fixture
def follower(server: RunningServer, tmp_path: Path) -> Iterator[Follower]:
    with following(server, tmp_path / "follower.log") as started:
        yield started


def test_nothing_is_asked_before_somebody_looks_and_after_nobody_does(follower: Follower) -> None:
    assert follower.links() == []

    follower.tell("want")
    follower.wait_for("connecting", "live")
    wait_until(lambda: "delta" in follower.frames(), 60, "news")
    assert next(kind for kind in follower.frames() if kind != "interval") == "snapshot"

    follower.tell("leave")
    follower.tell("want")
    num_frames = len(follower.frames())
    wait_until(lambda: len(follower.frames()) > num_frames, 60, "news after a pause")
    assert follower.links() == ["connecting", "live"]


def test_a_server_that_goes_is_found_again(server: RunningServer, follower: Follower) -> None:
    follower.tell("want")
    follower.wait_for("connecting", "live")

    server.end()
    follower.wait_for("lost")
    again = subprocess.Popen(
        server.process.args, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        follower.wait_for("connecting", "live")
        assert follower.frames().count("snapshot") == 2
    finally:
        again.terminate()
        again.wait(60)


def test_a_wrong_token_is_told_from_a_server_that_is_gone(
    server: RunningServer, tmp_path: Path
) -> None:
    with following(server, tmp_path / "stranger.log", "wrong") as stranger:
        stranger.tell("want")

        stranger.wait_for("connecting", "forbidden")
        assert stranger.frames() == []
