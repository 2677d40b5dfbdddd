"""Keras and JAX in a pool: they see the device of their rank, and JAX the other ranks."""

import importlib.util
import os
from collections.abc import Iterator
from typing import Any

import pytest

from notebooks import Notebook, notebook

KERAS = """%%spmd
import keras, numpy as np
model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
kept = model.fit(np.ones((8, 4)), np.ones((8, 1)), epochs=3, verbose=0).history["loss"]
seen = (keras.backend.backend(), str(keras.ops.ones(3).device), str(model.weights[0].value.device))
"""
JAX = """%%spmd
import jax, jax.numpy as jnp
if not jax.distributed.is_initialized():
    jax.distributed.initialize()
from jax.experimental import multihost_utils
sums = multihost_utils.process_allgather(jnp.array([rank + 1.0])).sum().item()
seen = (jax.process_index(), jax.process_count(), jax.local_device_count(), jax.device_count(),
        jax.local_devices()[0].platform, str(jnp.ones(3).device.platform), sums)
"""
LISTENING = """%%spmd
import psutil
sockets = psutil.Process().net_connections()
ends = {end.laddr.ip.removeprefix("::ffff:") for end in sockets if end.status == "LISTEN"}
"""


@pytest.fixture(scope="module")
def frameworks() -> Iterator[Notebook]:
    """A notebook with a pool of two."""
    with notebook({**os.environ, "KERAS_BACKEND": "torch"}) as opened:
        opened.check("%load_ext jupyter_mgpu\nimport jupyter_mgpu as mgpu\n%parpool 2")
        yield opened


def needs(name: str) -> Any:
    is_missing = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(is_missing, reason=f"{name} is not installed")


def of_all_ranks(nb: Notebook, name: str) -> list:
    return nb.value(f"list(mgpu.current_pool()[{name!r}])")


@needs("keras")
def test_keras_trains_with_torch_on_the_device_of_its_rank(frameworks: Notebook) -> None:
    for _ in range(2):
        frameworks.check(KERAS, timeout=100)

        assert of_all_ranks(frameworks, "seen") == [("torch", "cpu", "cpu")] * 2
        assert all(first > last for first, *_, last in of_all_ranks(frameworks, "kept"))


@needs("jax")
def test_jax_finds_the_ranks_and_sees_the_device_of_its_own(frameworks: Notebook) -> None:
    for _ in range(2):
        frameworks.check(JAX, timeout=100)

        expected = [(rank, 2, 1, 2, "cpu", "cpu", 3.0) for rank in range(2)]
        assert of_all_ranks(frameworks, "seen") == expected


@needs("jax")
def test_jax_listens_on_no_other_interface_than_the_pool(frameworks: Notebook) -> None:
    frameworks.check(JAX + LISTENING.removeprefix("%%spmd\n"), timeout=100)

    assert of_all_ranks(frameworks, "ends") == [{"127.0.0.1"}] * 2


@needs("jax")
def test_new_engines_meet_in_jax_as_well(frameworks: Notebook) -> None:
    frameworks.check(JAX, timeout=100)
    frameworks.check("%parpool restart")

    frameworks.check(JAX, timeout=100)

    assert [seen[1] for seen in of_all_ranks(frameworks, "seen")] == [2, 2]
