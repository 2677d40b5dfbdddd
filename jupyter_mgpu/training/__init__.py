"""One network on one device or on all of a pool's: `train`, and predictions.

    fit          train(): checks, chooses where, hands out the result
    places       which device, or which ranks of which pool
    predicting   predict(), classify()
    here         in this process
    calls        a call on all ranks
    on_pool      on several ranks at the same time

What runs beside the network is `on_engine.training`.
"""

from jupyter_mgpu.on_engine.training.history import History
from jupyter_mgpu.on_engine.training.options import TrainingOptions
from jupyter_mgpu.training.fit import train
from jupyter_mgpu.training.predicting import classify, predict

__all__ = ["History", "TrainingOptions", "classify", "predict", "train"]
