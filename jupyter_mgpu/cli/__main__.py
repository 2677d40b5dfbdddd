"""Runs the command line as `python -m jupyter_mgpu.cli`."""

import sys

from jupyter_mgpu.cli.command import main

sys.exit(main())
