"""Messages that nobody of the pool has signed: neither the controller nor an engine takes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from far_pools import Loopback, far_pool, mixed_plans
from jupyter_client.session import Session

from jupyter_mgpu.pool import Pool
from notebooks import wait_until

ANSWER_MS = 60_000


@pytest.fixture(scope="module")
def mixed() -> Iterator[Pool]:
    """A pool with an engine elsewhere, whose controller is encrypted as well."""
    with far_pool(mixed_plans(Loopback())) as opened:
        yield opened


@pytest.mark.parametrize("kind", ["pool", "mixed"])
@pytest.mark.parametrize("key", [b"", b"guessed"])
@pytest.mark.parametrize("port", ["mux", "task", "control", "registration"])
def test_what_is_not_signed_is_not_done(
    kind: str, port: str, key: bytes, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pool: Pool = request.getfixturevalue(kind)
    client = pool.client
    wait_until(lambda: client.ids == [0, 1], 60, "both engines")
    stranger, own = Session(key=key), Session(key=client.session.key)
    with zmq.Context.instance().socket(zmq.DEALER) as socket:
        socket.identity, socket.linger = own.bsession, 0
        if kind == "mixed":  # who knows the controller's public key is let in
            socket.curve_serverkey = client.curve_serverkey
            socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.connect(client._config[port])
        engine = client._build_targets([0])[0][0] if port in ("mux", "control") else None

        def ask(session: Session, name: str) -> str:
            code = f"import pathlib; pathlib.Path({str(tmp_path / name)!r}).touch()"
            content = {"code": code, "silent": False, "user_expressions": {}}
            request = "connection_request" if port == "registration" else "execute_request"
            sent = session.send(socket, request, content, ident=engine)
            return str(sent["header"]["msg_id"])

        ask(stranger, "stranger")
        asked = ask(own, "own")  # by the same connection, so that it comes later

        assert socket.poll(ANSWER_MS)
        _, parts = own.feed_identities(socket.recv_multipart())
        assert own.deserialize(parts)["parent_header"]["msg_id"] == asked
    done = [] if port == "registration" else ["own"]
    assert [path.name for path in tmp_path.iterdir()] == done
