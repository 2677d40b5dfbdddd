"""Descriptions of clusters: where they are read, what is refused, and how a pool asks for them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_mgpu import clusters, parpool
from jupyter_mgpu.clusters import HostDescription, LauncherOptions, MpiOptions, SlurmOptions
from jupyter_mgpu.clusters.files import PROJECT_FILE, user_file
from jupyter_mgpu.errors import ClusterError, SelectionError
from jupyter_mgpu.transport.profiles import describe_profile

LAB = """
[lab]
kind = "ssh"
python = "/sw/env/bin/python"
folder = "~/work"
environment = { NCCL_DEBUG = "INFO", HF_HOME = "/data/hf" }
tunnel = true
start_timeout = 20
hosts = [
  "local",
  { name = "gpu1", gpus = "0-3", address = "10.0.0.1" },
  { name = "old", ssh = "me@old", engines = 2, gpus = "none", environment = { HF_HOME = "/hf" } },
]
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the user's clusters file, and a project in it as the working folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    user_file().parent.mkdir(parents=True)
    (tmp_path / "project" / "notebooks").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project" / "notebooks")
    return tmp_path


def test_hosts_take_from_their_cluster_what_they_do_not_say_themselves() -> None:
    user_file().write_text(LAB)

    lab = clusters.find("lab")

    both = {"NCCL_DEBUG": "INFO", "HF_HOME": "/data/hf"}
    assert lab.hosts == (
        HostDescription("local", "local", environment=both, is_local=True),
        HostDescription(
            "gpu1",
            "gpu1",
            address="10.0.0.1",
            gpus="0-3",
            python="/sw/env/bin/python",
            folder="~/work",
            environment=both,
        ),
        HostDescription(
            "old",
            "me@old",
            gpus="none",
            engines=2,
            python="/sw/env/bin/python",
            folder="~/work",
            environment={**both, "HF_HOME": "/hf"},
        ),
    )
    assert lab.options == clusters.SshOptions(tunnel=True)
    assert (lab.kind, lab.start_timeout_s, lab.source) == ("ssh", 20.0, str(user_file()))


def test_slurm_options_and_a_template_beside_the_file(home: Path) -> None:
    (home / "project" / "job.sh").write_text("#!/bin/sh\nexec srun {program_and_args}\n")
    (home / "project" / PROJECT_FILE).write_text(
        '[big]\nkind = "slurm"\npartition = "gpu"\naccount = "ab12"\nqos = "high"\n'
        'time = "2:00:00"\noptions = ["--ntasks-per-node=2"]\ntemplate = "job.sh"\n'
        'submit = "sbatch"\n'
    )

    assert clusters.find("big").options == SlurmOptions(
        partition="gpu",
        account="ab12",
        qos="high",
        time="2:00:00",
        options=("--ntasks-per-node=2",),
        template="#!/bin/sh\nexec srun {program_and_args}\n",
        submit="sbatch",
    )


def test_the_project_wins_over_the_user_and_the_nearest_file_is_the_projects(home: Path) -> None:
    user_file().write_text('[a]\nkind = "mpi"\n[b]\nkind = "mpi"\n')
    (home / PROJECT_FILE).write_text('[a]\nkind = "pbs"\n')
    (home / "project" / PROJECT_FILE).write_text('[a]\nkind = "slurm"\n')

    assert clusters.find("a").source == str(home / "project" / PROJECT_FILE)
    assert clusters.find("a").kind == "slurm"
    assert clusters.find("b").source == str(user_file())
    assert clusters.list_names()[:2] == ["a", "b"]


def test_a_file_above_the_home_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / PROJECT_FILE).write_text('[a]\nkind = "slurm"\n')
    monkeypatch.setenv("HOME", str(home / "project"))

    with pytest.raises(ClusterError, match="'a' was asked for"):
        clusters.find("a")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to give a file to somebody else")
def test_a_strangers_file_above_the_working_folder_is_not_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    file = home / PROJECT_FILE
    file.write_text('[a]\nkind = "slurm"\n')
    assert clusters.find("a").kind == "slurm"

    os.chown(file, 12345, 12345)

    with pytest.raises(ClusterError, match="'a' was asked for"):
        clusters.find("a")


def test_names_that_need_no_file() -> None:
    assert clusters.find("local").kind == "local"
    assert clusters.find("slurm").options == SlurmOptions()
    assert clusters.find("mpi").options == MpiOptions()
    assert clusters.find("pbs").options == LauncherOptions()
    assert {clusters.find(name).source for name in ("local", "slurm", "mpi")} == {"built in"}


def test_hosts_cannot_be_guessed() -> None:
    with pytest.raises(ClusterError, match=r"'ssh' was asked for, but no file") as refused:
        clusters.find("ssh")

    *_, name, kind, hosts = str(refused.value).splitlines()
    assert (name, kind, hosts) == ("[lab]", 'kind = "ssh"', 'hosts = ["gpu1", "gpu2"]')
    assert str(user_file()) in str(refused.value)


def test_an_unknown_name_lists_those_that_there_are() -> None:
    user_file().write_text(LAB)

    with pytest.raises(ClusterError, match=r"there are: lab, local, slurm.*Did you mean 'slurm'"):
        clusters.find("slrum")


SLURM = '[x]\nkind = "slurm"\n'
WRONG = {
    '[x]\nkind = "ssh"\nhost = ["a"]': r'x.host = \["a"\] was written.*Did you mean \'hosts\'',
    '[x]\nkind = "ssh"': r"x.hosts = \[\], but kind ssh needs hosts",
    '[x]\nkind = "ssh"\nhosts = []': r"x.hosts = \[\], but kind ssh needs hosts",
    '[x]\nkind = "ssh"\nhosts = "a"': r'x.hosts = "a", but a list is needed',
    '[x]\nhosts = ["a", "a"]': r'"a" stands there twice',
    '[x]\nhosts = [{ gpus = "0" }]': r"x.hosts\[0\] = .*a host needs a name",
    '[x]\nhosts = [{ name = "a", gpu = "0" }]': r"x.hosts\[0\].gpu = .*Did you mean 'gpus'",
    '[x]\nhosts = [{ name = "a", gpus = "0,0" }]': r'gpus = "0,0", but numbers are needed',
    '[x]\nhosts = [{ name = "a", gpus = 4 }]': r"gpus = 4, but numbers are needed",
    '[x]\nhosts = [{ name = "a", engines = 0 }]': r"engines = 0, but a whole number above 0",
    '[x]\nhosts = [{ name = "-oProxyCommand=x" }]': r"not beginning with a dash",
    '[x]\nhosts = ["a"]\nport = 70000': r"port = 70000, but ports go up to 65535",
    '[x]\nhosts = ["a"]\nport = "22"': r'port = "22", but a whole number',
    '[x]\nhosts = ["a"]\ntunnel = "yes"': r'tunnel = "yes", but true or false',
    '[x]\nhosts = ["a"]\nconfig = "none.cfg"': r"config = .*there is no file .*none.cfg",
    '[x]\nhosts = ["a"]\nenvironment = { A = 1 }': r"environment.A = 1, but values.*in quotes",
    '[x]\nhosts = ["a"]\nstart_timeout = true': r"start_timeout = true, but a number of seconds",
    '[x]\nhosts = ["a"]\npartition = "gpu"': r"belongs to kind slurm, and this is of kind ssh",
    '[x]\npartition = "gpu"': r"\[x\] has no kind. Write one of: local, ssh, slurm, mpi",
    '[x]\nkind = "slurn"': r"kinds are local, ssh, slurm.*Did you mean 'slurm'",
    '[x]\nkind = "slurm"\nsubmit = "sbach"': r'"auto", "sbatch", "srun".*Did you mean \'sbatch\'',
    '[x]\nkind = "slurm"\noptions = "--exclusive"': r"a list of texts is needed",
    '[x]\nkind = "slurm"\npartition = "gpu\\n#SBATCH"': r"on one line",
    SLURM + 'options = ["-N2", "--ntasks=8"]': r'"--ntasks=8", but the number .* %parpool 4',
    SLURM + 'options = ["-n", "8"]': r'options = "-n", but the number of tasks',
    '[x]\nkind = "mpi"\noptions = ["-x", "A"]': r'"-x", but variables .* environment = { NAME',
    SLURM + r'template = "#!/bin/sh\nexit 3\n"': r"it starts no engines.*srun {program_and_args}",
    SLURM + r'template = "#!/bin/sh\nsrun {program}_and {arg}\n"': r"{arg} in it is none of {n}",
    SLURM + r'template = "#!/bin/sh\ncd ${HOME}\nsrun {program_and_args}"': r"twice: \${{A}}",
    SLURM + r'template = "#!/bin/sh\ncd ${HOME\nsrun {program_and_args}"': r"do not pair up",
    '[x]\nkind = "local"\npython = "p"': r"x.python = .*may have only: kind",
    "x = 1": r"x = 1 stands outside a table",
    "[x": r"cannot be read",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_is_named_with_what_is_allowed(text: str) -> None:
    user_file().write_text(text)

    with pytest.raises(ClusterError, match=f"(?s){WRONG[text]}") as refused:
        clusters.find("x")

    assert str(user_file()) in str(refused.value)


def test_a_mistake_in_one_cluster_does_not_stop_another() -> None:
    user_file().write_text('[bad]\nkind = 1\n[good]\nkind = "mpi"\n')

    assert clusters.find("good").kind == "mpi"


@pytest.fixture
def profile(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of an ipyparallel profile named `team`."""
    monkeypatch.setenv("IPYTHONDIR", str(home / "ipython"))
    folder = home / "ipython" / "profile_team"
    for part in ("security", "log", "pid", "startup"):
        (folder / part).mkdir(parents=True)
    return folder / "ipcluster_config.py"


def test_a_profile_says_what_its_launcher_is_and_what_it_is_given(profile: Path) -> None:
    profile.write_text(
        "c.Cluster.engine_launcher_class = 'slurm'\n"
        "c.SlurmLauncher.queue = 'gpu'\nc.SlurmEngineSetLauncher.account = 'ab12'\n"
        "c.SlurmEngineSetLauncher.timelimit = 30\nc.Cluster.engine_timeout = 300\n"
    )

    team = describe_profile("team")

    assert (team.kind, team.start_timeout_s) == ("slurm", 300.0)
    assert team.options == SlurmOptions(partition="gpu", account="ab12", time="30")
    assert str(profile.parent) in team.source


def test_a_profile_for_ssh_lists_its_hosts(profile: Path) -> None:
    profile.write_text(
        "c.Cluster.engine_launcher_class = 'ssh'\nc.Cluster.controller_ip = '10.0.0.9'\n"
        "both = {'a': 2, 'me@b:2222': {'n': 1, 'environment': {'X': '1'}}}\n"
        "c.SSHEngineSetLauncher.engines = both\n"
        "c.SSHLauncher.remote_python = '/sw/python'\n"
    )

    team = describe_profile("team")

    assert team.address == "10.0.0.9"
    assert team.hosts == (
        HostDescription("a", "a", engines=2, python="/sw/python"),
        HostDescription(
            "me@b:2222",
            "ssh://me@b:2222",
            engines=1,
            python="/sw/python",
            environment={"X": "1"},
        ),
    )


def test_a_profile_with_another_launcher_keeps_its_settings(profile: Path) -> None:
    profile.write_text(
        "c.Cluster.engine_launcher_class = 'pbs'\nc.PBSEngineSetLauncher.queue = 'night'\n"
    )

    team = describe_profile("team")

    assert team.kind == "ipyparallel.cluster.launcher.PBSEngineSetLauncher"
    assert team.options == LauncherOptions({"queue": "night"})


def test_a_profile_that_is_not_there_or_broken_is_refused(profile: Path) -> None:
    with pytest.raises(ClusterError, match=r"has: team.*Did you mean 'team'"):
        describe_profile("taem")
    template = "c.SlurmEngineSetLauncher.batch_template = 'srun ipengine'"
    profile.write_text(f"c.Cluster.engine_launcher_class = 'slurm'\n{template}\n")
    with pytest.raises(ClusterError, match="it starts no engines"):
        describe_profile("team")
    profile.write_text("c.Cluster.engine_launcher_class = 'nonsense'\n")

    with pytest.raises(ClusterError, match="cannot be used"):
        describe_profile("team")


def test_a_pool_looks_its_cluster_up_before_it_starts_anything(profile: Path) -> None:
    profile.write_text("c.Cluster.engine_launcher_class = 'mpi'\n")
    user_file().write_text('[big]\nkind = "slurm"\n')

    with pytest.raises(ClusterError, match=r"'bgi' was asked for.*Did you mean 'big'"):
        parpool(1, cluster="bgi")
    with pytest.raises(SelectionError, match="give one of them"):
        parpool(1, cluster="big", profile="team")
    with pytest.raises(SelectionError, match=r"%parpool 4 --cluster big"):
        parpool(cluster="big")
    with pytest.raises(SelectionError, match=r"--share was asked for.*'team' \(mpi\)"):
        parpool(1, profile="team", share=True)


def test_the_cluster_local_is_this_machine() -> None:
    with parpool(1, cluster="local", name="here") as pool:
        assert pool.submit(os.getppid).result(60) == os.getpid()


def test_reading_descriptions_imports_no_ipyparallel() -> None:
    code = (
        "import sys; from jupyter_mgpu import clusters; clusters.find('slurm')\n"
        "print([m for m in sys.modules if m in ('ipyparallel', 'IPython', 'zmq')])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


NIGHT = """
from pathlib import Path
from ipyparallel.cluster.launcher import LocalEngineSetLauncher
from traitlets import Unicode

class NightEngineSetLauncher(LocalEngineSetLauncher):
    mark = Unicode("").tag(config=True)

    def start(self, n):
        Path(self.mark).touch()
        return super().start(n)
"""


@pytest.fixture
def night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the launcher `night` of another package makes when it starts an engine."""
    package = tmp_path / "site"
    information = package / "night-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: night\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[ipyparallel.engine_launchers]\nnight = night_launcher:NightEngineSetLauncher\n"
        "broken = night_launcher:Missing\n"
    )
    (package / "night_launcher.py").write_text(NIGHT)
    monkeypatch.syspath_prepend(package)
    user_file().write_text(
        f'[mine]\nkind = "night"\nsettings = {{ mark = "{tmp_path}/mark" }}\n'
        '[wrong]\nkind = "night"\nsettings = { marc = "x" }\n'
    )
    return tmp_path / "mark"


def test_another_package_brings_a_launcher_by_an_entry_point(night: Path) -> None:
    assert "night" in clusters.list_names()

    with parpool(1, cluster="mine", name="night") as pool:
        assert night.exists()
        assert pool.submit(abs, -2).result(20) == 2

    with pytest.raises(ClusterError, match=r"'marc' was given, but night has: .*mark"):
        parpool(1, cluster="wrong", name="wrong")
    with pytest.raises(ClusterError, match=r"broken cannot be imported.*Missing"):
        parpool(1, cluster="broken", name="broken")
