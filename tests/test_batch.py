"""`batch`: a call that outlives its kernel, on engines that end with it."""

from kept_pools import ended_later, kernel, traces_of

from jupyter_mgpu import control
from notebooks import wait_until

WORK = """
def work(n, factor=1):
    print("works")
    mgpu.report(1, done=n)
    return [factor * i for i in range(n)]
"""


def kept(name: str) -> bool:
    return any(pool.name == name for pool in control.find_pools())


def test_a_batch_ends_with_its_task_and_its_result_stays() -> None:
    with ended_later("job"), kernel() as nb, kernel() as other:
        nb.check(f"{WORK}\njob = mgpu.batch(work, 3, factor=2, name='job')")
        assert nb.value("job.result()") == [0, 2, 4]
        wait_until(lambda: not kept("job"), 60, "the end of the pool")
        assert nb.value("mgpu.current_pool() is None")
        assert other.value("mgpu.tasks.load('job').result()") == [0, 2, 4]
        assert other.value("mgpu.tasks.load('job').diary") == "works\n"
        assert "job" in other.check("%tasks").text
        assert "job" in other.check("!{sys.executable} -m jupyter_mgpu.cli tasks").stdout


def test_a_batch_outlives_its_kernel_and_is_seen_from_anywhere(tmp_path) -> None:
    go = tmp_path / "go"
    wait = f"""
import pathlib
def wait():
    print("waits")
    while not pathlib.Path({str(go)!r}).exists():
        time.sleep(0.02)
    raise ArithmeticError("in the end")
"""
    with ended_later("job"), kernel() as other:
        with kernel() as nb:
            nb.check(f"{wait}\njob = mgpu.batch(wait, name='job')")
            wait_until(lambda: nb.value("job.diary") != "", 60, "its print")
            nb.kill()
        traces = traces_of("job")
        assert "running" in other.check("%tasks").text
        assert "waits" in other.check("%tasks job").text
        assert "there is a pool 'job'" in other.run("mgpu.batch(abs, 1, name='job')").evalue
        go.touch()
        traces.wait_until_gone()
        cell = other.run("mgpu.tasks.load('job').result()")
        assert cell.ename == "ArithmeticError"
        assert "in the end" in cell.evalue


def test_a_batch_on_several_engines_runs_on_all_of_them() -> None:
    with ended_later("together"), kernel() as nb:
        nb.check("""
def together():
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    return dist.get_rank(), float(value)
job = mgpu.batch(together, pool=2, name="together")
""")
        assert nb.value("job.result()", 120) == (0, 3.0)


def test_a_large_result_reaches_the_kernel_that_waits() -> None:
    with ended_later("large"), kernel() as nb:
        nb.check("import numpy\njob = mgpu.batch(numpy.ones, 5_000_000, name='large')")
        assert nb.value("float(job.result().sum())") == 5e6
        wait_until(lambda: not kept("large"), 60, "the end of the pool")
        assert nb.value("float(mgpu.tasks.load('large').result().sum())") == 5e6


def test_what_cannot_be_packed_leaves_no_pool() -> None:
    with ended_later("bad"), kernel() as nb:
        cell = nb.run("mgpu.batch(abs, threading.Lock(), name='bad')")
        assert cell.ename == "PackingError"
        assert not kept("bad")


def test_what_cannot_be_packed_is_refused_before_a_cluster_is_asked() -> None:
    with ended_later("bad"), kernel() as nb:
        nb.check("from jupyter_mgpu.clusters import ClusterDescription, MpiOptions")
        nb.check("none = ClusterDescription('none', 'mpi', options=MpiOptions('/no/mpirun'))")
        asked = nb.run("mgpu.batch(abs, 1, cluster=none, name='bad')")
        refused = nb.run("mgpu.batch(abs, threading.Lock(), cluster=none, name='bad')")
        assert asked.ename == "PoolStartError"
        assert refused.ename == "PackingError"
