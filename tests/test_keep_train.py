"""A training on several ranks that outlives its kernel."""

from pathlib import Path

from kept_pools import ended_later, kernel, killed_kernel, record_of

from jupyter_mgpu import control
from notebooks import wait_until

TRAIN = """
import torch
torch.manual_seed(0)
class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)
    def forward(self, x):
        return self.layer(x)
x = torch.randn(256, 8)
y = x.sum(1, keepdim=True)
options = mgpu.TrainingOptions(
    execution_environment="multi-gpu", max_epochs=EPOCHS, mini_batch_size=32, optimizer="sgd",
)
"""
START = 'job = mgpu.train(Small(), (x, y), torch.nn.MSELoss(), options, wait=False, name="night")\n'


def test_a_training_goes_on_without_its_kernel_and_gives_the_network() -> None:
    code = TRAIN.replace("EPOCHS", "100") + START + "while not job.metrics:\n    time.sleep(0.02)\n"
    with killed_kernel(code), kernel() as nb:
        wait_until(lambda: record_of("night")["attached_pid"] is None, 10, "the detaching")
        nb.check("%parpool --attach night\npool = mgpu.current_pool()")
        nb.check("job = mgpu.tasks.load('night')\nnet, history = job.result()")
        assert nb.value("type(net).__name__") == "Small"
        assert nb.value("job.metrics[-1]['step']") == 100 * 8
        nb.check("import torch\nweight = net.layer.weight.detach()")
        assert nb.value("bool(torch.allclose(weight, torch.ones(1, 8), atol=0.1))")


def test_a_training_on_a_kept_pool_is_that_of_another() -> None:
    with ended_later("night"), kernel() as nb:
        nb.check("%parpool 2 --keep --name night\npool = mgpu.current_pool()")
        nb.check(TRAIN.replace("EPOCHS", "3") + START)
        nb.check("net, history = job.result()", 120)
        assert nb.value("isinstance(net, Small)")
        assert nb.value("history.environment").startswith("2 CPU engines")
        mapped = Path(f"/proc/{control.named('night').kernel_pid}/maps").read_text()
        assert "libtorch" not in mapped  # of the keeper, which runs no code of users
