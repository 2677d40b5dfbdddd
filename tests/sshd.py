"""A real sshd on loopback, for tests: keys of its own, the same user, no systemd."""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port

from notebooks import wait_until

CONFIGURATION = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile {folder}/sshd.pid
PermitRootLogin yes
StrictModes no
UsePAM no
PasswordAuthentication no
"""
CLIENT = """\
Host far
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking {accept}
"""


@pytest.fixture(scope="module")
def ssh_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start an sshd; its folder has `config`, with which `ssh -F` reaches it as the host `far`.

    With `strange` instead its host key is unknown.
    """
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH (apt-get install openssh-server openssh-client)")
    if os.getuid() != 0:
        pytest.skip("needs root, as which sshd runs here")
    folder = tmp_path_factory.mktemp("ssh")
    for name in ("key", "host_key"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name]
        subprocess.run(command, check=True)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    port = free_port()
    (folder / "sshd_config").write_text(CONFIGURATION.format(folder=folder, port=port))
    for name, accept in (("config", "accept-new"), ("strange", "yes")):
        (folder / name).write_text(CLIENT.format(folder=folder, port=port, accept=accept))
    Path("/run/sshd").mkdir(exist_ok=True)  # for its unprivileged part; normally systemd's work
    daemon = subprocess.Popen([program, "-D", "-e", "-f", folder / "sshd_config"])
    try:
        wait_until(lambda: _answers(port), 60, "sshd")
        yield folder
    finally:
        daemon.terminate()
        daemon.wait(60)


def _answers(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
