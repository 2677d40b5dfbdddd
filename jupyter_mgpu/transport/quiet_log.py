"""The log of ipyparallel's objects, which nobody sees: a kernel's own is shown in the notebook."""

import logging

LOG = logging.getLogger("jupyter_mgpu.cluster")
LOG.setLevel(logging.CRITICAL)
LOG.addHandler(logging.NullHandler())
LOG.propagate = False
