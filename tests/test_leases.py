"""Who holds which GPU: records that live as long as their holders, across processes and users."""

import fcntl
import gc
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from jupyter_mgpu.errors import LeaseError
from jupyter_mgpu.leases import Lease, LeaseBook, locks

CLAIM = """
import os, sys
from pathlib import Path
from jupyter_mgpu.leases import LeaseBook
if len(sys.argv) > 2: os.setuid(int(sys.argv[2]))
claim = LeaseBook(Path(sys.argv[1])).claim(["GPU-a"], rank=0, pool="theirs", notebook="n.ipynb")
print(claim.paths[0], flush=True)
sys.stdin.readline()
"""
WATCHDOG = """
import fcntl, os, sys
for path in os.environ["MGPU_LEASES"].split(os.pathsep):
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_SH)
print(flush=True)
sys.stdin.readline()
"""
NOBODY = 65534


@pytest.fixture
def book(tmp_path: Path) -> LeaseBook:
    return LeaseBook(tmp_path / "leases")


def start(code: str, *arguments: str, **variables: str):
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )
    line = process.stdout.readline()
    return process, line.strip()


def end(process) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_claim_is_seen_with_who_holds_it(book):
    with book.claim(["GPU-a", "GPU-b"], rank=3, pool="mine", notebook="n.ipynb", kernel_id="k"):
        leases = book.live()

    assert sorted(lease.gpu_uuid for lease in leases) == ["GPU-a", "GPU-b"]
    assert {lease.pid for lease in leases} == {os.getpid()}
    assert leases[0].holder.startswith("pool 'mine' rank 3 (user ")
    assert f"pid {os.getpid()}, notebook n.ipynb" in leases[0].holder
    assert book.live() == []


def test_a_lease_ends_with_its_process_however_that_ends(book):
    process, path = start(CLAIM, str(book.folder))
    alive = book.live()

    end(process)

    assert [lease.pool for lease in alive] == ["theirs"]
    assert book.live() == []
    assert not Path(path).exists()


def test_a_lease_lives_on_with_the_watchdog_and_ends_after_it(book):
    claim = book.claim(["GPU-a"], rank=0, pool="mine")
    watchdog, _ = start(WATCHDOG, MGPU_LEASES=os.pathsep.join(map(str, claim.paths)))
    claim.release_own_locks()
    after_release = book.live()
    claim.drop()
    after_drop = book.live()

    end(watchdog)

    assert len(after_release) == 1
    assert len(after_drop) == 1
    assert book.live() == []


def test_a_forked_child_of_the_pool_does_not_keep_a_released_lease(book):
    claim = book.claim(["GPU-a"], rank=0, pool="mine")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)

    claim.release_own_locks()

    assert book.live() == []
    os.close(writing)
    os.waitpid(child, 0)


def test_a_forgotten_claim_gives_its_gpu_back(book):
    claim = book.claim(["GPU-a"], rank=0, pool="mine")
    del claim
    gc.collect()

    assert book.live() == []


def test_a_forked_child_cannot_give_back_what_its_parent_holds(book):
    claim = book.claim(["GPU-a"], rank=0, pool="mine")
    child = os.fork()
    if child == 0:
        claim.drop()
        os._exit(0)
    os.waitpid(child, 0)

    assert len(book.live()) == 1
    claim.drop()


def test_several_records_of_one_gpu_can_live_side_by_side(book):
    with (
        book.claim(["GPU-a"], rank=0, pool="one"),
        book.claim(["GPU-a"], rank=1, pool="one"),
    ):
        assert [lease.rank for lease in book.live()] == [0, 1]


def test_records_and_folder_can_be_read_by_everybody(book):
    with book.claim(["GPU-a"], rank=0, pool="mine") as claim:
        mode = stat.S_IMODE(claim.paths[0].stat().st_mode)

    assert mode == 0o644
    assert stat.S_IMODE(book.folder.stat().st_mode) == 0o1777


def test_a_strict_umask_does_not_hide_records_from_other_users(tmp_path):
    before = os.umask(0o077)
    try:
        book = LeaseBook(tmp_path / "leases")
        claim = book.claim(["GPU-a"], rank=0, pool="mine")
        with book.choosing():
            pass
    finally:
        os.umask(before)

    assert stat.S_IMODE(claim.paths[0].stat().st_mode) == 0o644
    assert stat.S_IMODE((book.folder / "choosing.lock").stat().st_mode) == 0o644
    claim.drop()


def test_files_that_are_no_records_are_passed_over(book):
    with book.claim(["GPU-a"], rank=0, pool="mine"):
        (book.folder / "notes.txt").write_text("hello")
        (book.folder / "link.lease").symlink_to(book.folder / "notes.txt")
        broken = book.folder / "broken.lease"
        broken.write_text("{")

        leases = book.live()

    assert [lease.gpu_uuid for lease in leases] == ["GPU-a"]
    assert not broken.exists()
    assert (book.folder / "notes.txt").exists()


def test_reading_by_many_at_once_never_makes_a_dead_lease_look_alive(book):
    process, path = start(CLAIM, str(book.folder))
    record = Path(path).read_text()
    end(process)
    seen: list[Lease] = []

    def read() -> None:
        for number in range(20):
            (book.folder / f"dead-{threading.get_ident()}-{number}.lease").write_text(record)
            seen.extend(book.live())

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert seen == []


def test_a_reader_that_takes_its_time_makes_no_dead_lease_look_alive(book):
    process, path = start(CLAIM, str(book.folder))
    end(process)

    with Path(path).open() as reader:
        fcntl.flock(reader, fcntl.LOCK_EX)
        assert book.live() == []


def test_only_one_pool_chooses_at_a_time(book):
    order: list[str] = []
    inside, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with book.choosing():
            inside.set()
            go_on.wait(60)
            order.append("first")

    def second() -> None:
        with book.choosing():
            order.append("second")

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    inside.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)

    assert order == ["first", "second"]


def test_who_waits_too_long_for_the_choice_of_others_is_told(book):
    with (
        book.choosing(),
        pytest.raises(LeaseError, match=r"has been choosing GPUs for 0\.2 s"),
        book.choosing(timeout=0.2),
    ):
        pass


def test_a_killed_chooser_does_not_lock_the_others_out(book):
    code = (
        "import sys; from pathlib import Path; from jupyter_mgpu.leases import LeaseBook\n"
        "with LeaseBook(Path(sys.argv[1])).choosing(): print(flush=True); sys.stdin.readline()"
    )
    process, _ = start(code, str(book.folder))

    end(process)

    with book.choosing(timeout=5):
        pass


def test_a_lock_file_that_a_cleaner_removed_is_made_again(book):
    with book.choosing():
        (book.folder / "choosing.lock").unlink()
        with book.choosing(timeout=1):
            assert (book.folder / "choosing.lock").exists()


def test_a_lock_file_is_open_for_writing_since_nfs_locks_no_other_one(book):
    for _ in range(2):  # made, then found
        descriptor = locks.try_exclusively(book.folder / "a.lock", 1)
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
        locks.release(descriptor)


def test_a_folder_that_cannot_be_used_is_named_with_the_way_out(tmp_path):
    blocked = tmp_path / "leases"
    blocked.write_text("a file")

    for folder in (blocked, blocked / "below"):
        with pytest.raises(LeaseError, match="MGPU_LEASE_DIR"):
            LeaseBook(folder)


def test_the_folder_can_be_chosen_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("MGPU_LEASE_DIR", str(tmp_path / "elsewhere"))

    assert LeaseBook().folder == tmp_path / "elsewhere"


def test_what_a_killed_writer_left_is_swept_away_in_time(book):
    old, young = book.folder / "old.draft", book.folder / "young.draft"
    old.write_text("{")
    young.write_text("{")
    os.utime(old, (1, 1))

    book.live()

    assert [old.exists(), young.exists()] == [False, True]


@pytest.fixture
def shared_book() -> LeaseBook:
    """A book that other users can reach, which they cannot in pytest's own folders."""
    if os.geteuid() != 0:
        pytest.skip("only root can start processes of other users")
    with tempfile.TemporaryDirectory(prefix="mgpu-test-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield LeaseBook(Path(folder) / "leases")


def test_another_users_lease_is_seen_and_their_dead_record_harms_nobody(shared_book):
    process, path = start(CLAIM, str(shared_book.folder), str(NOBODY))
    alive = shared_book.live()
    end(process)

    dead = shared_book.live()

    assert path
    assert [lease.user for lease in alive] == ["nobody"]
    assert dead == []


def test_a_user_reads_leases_and_chooses_among_files_of_other_users(shared_book):
    code = (
        "import json, os, sys\nfrom pathlib import Path\n"
        "from jupyter_mgpu.leases import LeaseBook\n"
        "os.setuid(int(sys.argv[2]))\n"
        "book = LeaseBook(Path(sys.argv[1]))\n"
        "with book.choosing(5): leases = book.live()\n"
        "print(json.dumps([lease.user for lease in leases]))"
    )
    dead = shared_book.folder / "dead.lease"
    with shared_book.choosing():
        pass
    with shared_book.claim(["GPU-a"], rank=0, pool="mine"):
        dead.write_text("{}")
        process, line = start(code, str(shared_book.folder), str(NOBODY))
        process.communicate()

    assert json.loads(line) == ["root"]
    assert dead.exists()  # another user's file in a sticky folder cannot be removed, and need not


def test_a_forged_name_does_not_hide_who_owns_the_record(book):
    with book.claim(["GPU-a"], rank=0, pool="mine") as claim:
        path = claim.paths[0]
        record = json.loads(path.read_text())
        path.write_text(json.dumps({**record, "user": "somebody else"}))

        (lease,) = book.live()

    assert lease.user == record["user"]
