"""Hooks after an import, and imports that an interrupt must not break."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from jupyter_mgpu.on_engine import imports


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run_python(source: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_hook_runs_after_the_import_and_before_anybody_sees_the_module(folder: Path) -> None:
    (folder / "hooked_later.py").write_text("value = 1\n")

    def double(module: object) -> None:
        module.value *= 2  # type: ignore[attr-defined]

    imports.after_import("hooked_later", double)
    from hooked_later import value

    assert value == 2


def test_a_hook_runs_at_once_where_the_module_is_there(folder: Path) -> None:
    (folder / "hooked_before.py").write_text("value = 1\n")
    import hooked_before

    seen: list[object] = []
    imports.after_import("hooked_before", seen.append)

    assert seen == [hooked_before]


def test_a_hooked_module_keeps_its_loader_and_its_source(folder: Path) -> None:
    (folder / "hooked_source.py").write_text("def f():\n    return 1\n")
    imports.after_import("hooked_source", lambda _module: None)
    import inspect

    import hooked_source

    assert type(hooked_source.__loader__).__name__ == "SourceFileLoader"
    assert "return 1" in inspect.getsource(hooked_source.f)


def test_torch_is_patched_where_it_was_imported_before(tmp_path: Path) -> None:
    # The other order is what every engine in the other tests does.
    source = """
        import sys
        import torch.distributed as dist, torch.nn.parallel
        from jupyter_mgpu.on_engine import process_group
        process_group.install()
        process_group.install()
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        original_store = sys.modules["torch._C._distributed_c10d"].TCPStore
        print(all((
            dist.init_process_group is c10d.init_process_group,
            "_mgpu_patched" in vars(c10d),
            dist.TCPStore is sys.modules["torch.distributed.rendezvous"].TCPStore,
            dist.TCPStore.__mro__[1] is original_store,
        )))
    """

    assert run_python(source, tmp_path) == "True"


def test_installing_imports_no_torch(tmp_path: Path) -> None:
    source = """
        import sys
        from jupyter_mgpu.on_engine import comm, process_group
        process_group.install()
        process_group.begin(3)
        process_group.abort(process_group.state()["cell"]), process_group.health()
        process_group.caused_by_abort(KeyboardInterrupt())
        process_group.after_interrupt()
        process_group.forget_tracebacks()
        print("torch" in sys.modules)
    """

    assert run_python(source, tmp_path) == "False"


INTERRUPTED_IMPORT = """
    import signal, sys, threading
    sys.path[:0] = [{folders}]
    from jupyter_mgpu.on_engine import imports
    seen = []

    def on_sigint(signum, frame):
        seen.append(imports.in_protected_import(frame))
        if seen[-1] is None:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_sigint)
    try:
        import {module}
    except KeyboardInterrupt:
        seen.append("interrupted")
    print(seen, "done" in vars(sys.modules.get("{module}", object)))
"""
SLOW_MODULE = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
done = True
"""


def test_an_import_of_a_library_is_not_interrupted(tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "slow_library.py").write_text(SLOW_MODULE)
    folders = f"{str(library)!r}"  # none of this interpreter's own: PYTHONPATH may lead to it
    source = textwrap.dedent(INTERRUPTED_IMPORT).format(folders=folders, module="slow_library")

    assert run_python(source, tmp_path) == "['slow_library'] True"


def test_an_import_of_the_users_own_module_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / "slow_own.py").write_text(SLOW_MODULE)
    source = textwrap.dedent(INTERRUPTED_IMPORT).format(folders="'.'", module="slow_own")

    assert run_python(source, tmp_path) == "[None, 'interrupted'] False"


def test_a_library_import_inside_the_users_own_module_is_not_interrupted(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import os, signal\nimport json.tool\ndone = True\n")
    source = textwrap.dedent(INTERRUPTED_IMPORT).format(folders="'.'", module="own")
    # json.tool runs argparse's import; the signal comes while json.tool's body runs.
    source = source.replace(
        "seen = []",
        "import os\n"
        "imports.after_import('json.tool', lambda module: os.kill(os.getpid(), signal.SIGINT))\n"
        "seen = []",
    )

    assert run_python(source, tmp_path) == "['json.tool'] True"


IN_ANOTHER_THREAD = """
    import builtins, signal, sys, threading
    sys.path.insert(0, ".")
    from jupyter_mgpu.on_engine import imports
    from jupyter_mgpu.packing.loaded import loaded
    builtins.begun, builtins.go = threading.Event(), threading.Event()
    seen = []

    def on_sigint(signum, frame):
        if not go.is_set():
            seen.append(imports.in_protected_import(frame))
            go.set()

    def interrupt_the_waiting_import(main=threading.get_ident()):
        def place(): return sys._current_frames()[main].f_code.co_filename
        while place() != "<frozen importlib._bootstrap>": pass
        while not go.is_set():  # one that comes just before a thread waits does not wake it
            signal.pthread_kill(main, signal.SIGINT)
            go.wait(0.01)

    signal.signal(signal.SIGINT, on_sigint)
    threading.Thread(target=__import__, args=("slow_own",)).start()
    builtins.begun.wait()
    seen.append(loaded("slow_own"))
    threading.Thread(target=interrupt_the_waiting_import).start()
    import slow_own
    print(seen, loaded("slow_own") is slow_own, loaded("nothing"))
"""


def test_python_is_not_interrupted_while_it_holds_import_locks(tmp_path: Path) -> None:
    (tmp_path / "slow_own.py").write_text("import builtins\nbegun.set()\ngo.wait()\n")

    assert run_python(IN_ANOTHER_THREAD, tmp_path) == "[None, 'the import system'] True None"
