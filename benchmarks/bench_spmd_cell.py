"""An empty `%%spmd` cell beside an empty `%%px` cell, in one real kernel."""

import measure

PREPARE = """
import sys
sys.path.insert(0, {folder!r})
import measure, ipyparallel as ipp
shell = get_ipython()
%load_ext jupyter_mgpu
%parpool 2
cluster = ipp.Cluster(n=2, log_level=40)
client = cluster.start_and_connect_sync(activate=True)
_ = client[:].apply_sync(lambda: 0)
"""

MEASURE = """
print(measure.median_of_many_s(lambda: shell.run_cell_magic({magic!r}, "", "pass")))
"""


def main() -> list[measure.Row]:
    with measure.Notebook() as notebook:
        notebook.run(PREPARE.format(folder=str(measure.Path(__file__).parent)))
        ours_s, peer_s = (
            float(notebook.run(MEASURE.format(magic=magic)).split()[-1]) for magic in ("spmd", "px")
        )
        notebook.run("%parpool stop\nclient.close()\ncluster.stop_cluster_sync()")
    return [
        measure.Row(
            "empty %%spmd cell",
            ours_s * 1e3,
            "ms",
            "<= 1.0x",
            "<= 0.3x",
            {"ipyparallel %%px": peer_s * 1e3},
        )
    ]


if __name__ == "__main__":
    measure.emit(main())
