"""Interactive multi-GPU work in Jupyter: a pool of engines with one pinned GPU each."""
