"""The command line: `jupyter mgpu`."""
