"""The pool's ipyparallel controller: one process, which ends with the pool's owner."""

from jupyter_mgpu.on_engine import guard


def main() -> None:
    """Run the controller."""
    guard.exit_with_owner()
    from ipyparallel.controller.app import main as run_controller

    run_controller()


if __name__ == "__main__":
    main()
