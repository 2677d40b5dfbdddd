"""The GPUs of this machine, and how a request such as `--gpus 1,3` picks some."""
