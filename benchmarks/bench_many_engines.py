"""32 CPU engines on this machine: seconds until all have answered, and memory per engine."""

import bench_start
import measure

NUM_ENGINES = 32


def main() -> list[measure.Row]:
    ours, theirs = bench_start.compare(NUM_ENGINES)
    return [
        measure.Row(
            "32 CPU engines ready",
            ours.seconds,
            "s",
            "<= 0.5x",
            "",
            {"ipyparallel": theirs.seconds},
        ),
        measure.Row(
            "32 CPU engines: PSS per engine",
            ours.megabytes / NUM_ENGINES,
            "MB",
            "<= 1.0x",
            "",
            {"ipyparallel": theirs.megabytes / NUM_ENGINES},
        ),
    ]


if __name__ == "__main__":
    measure.emit(main())
