"""Who has which accelerator."""

from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dynamod.cli.environment import facts, text
from dynamod.daemon.gpus import Gpus, devices, models
from dynamod.message.errors import UserError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"DYNAMOD_GPUS": "3,5"}, ["3", "5"]),
        ({"DYNAMOD_GPUS": " 3 , 5,"}, ["3", "5"]),
        ({"DYNAMOD_GPUS": "GPU-8a, MIG-1/2"}, ["GPU-8a", "MIG-1/2"]),
        ({"DYNAMOD_GPUS": "", "CUDA_VISIBLE_DEVICES": "1"}, []),
        ({"DYNAMOD_GPUS": "2", "CUDA_VISIBLE_DEVICES": "1"}, ["2"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8a,MIG-1"}, ["GPU-8a", "MIG-1"]),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, []),
    ],
)
def test_devices_from_the_environment(environ: dict[str, str], expected: list[str]) -> None:
    assert devices(environ) == expected


@pytest.mark.parametrize("text", ["a,b", "0;1", "1,x", "GPU"])
def test_devices_that_cannot_be(text: str) -> None:
    with pytest.raises(UserError, match="DYNAMOD_GPUS is") as raised:
        devices({"DYNAMOD_GPUS": text})
    assert "like 0,1" in raised.value.line()


def test_models_are_those_that_the_driver_shows(tmp_path: Path) -> None:
    said = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 33\nGPU UUID: \t GPU-8a-1\nBus Location: \t 0000:00:06.0\n"
    for address, lines in {"0000:01:00.0": "", "0000:00:06.0": said}.items():
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(lines)
    (tmp_path / "0000:02:00.0").mkdir()
    found = models(tmp_path)
    assert found == {"0000:00:06.0": "NVIDIA H200", "0000:01:00.0": "unknown", "0000:02:00.0": "unknown"}
    assert models(tmp_path / "none") == {}
    shown = text({**facts(), "gpus": found}).splitlines()
    assert next(line for line in shown if line.startswith("gpu ")) == "gpu NVIDIA H200 (0000:00:06.0)"


def test_too_few_say_how_many_are_free() -> None:
    gpus = Gpus(["0", "1"])
    gpus.take("a/W.0", 1)
    with pytest.raises(UserError, match=r"a/W\.1 asks for 2 GPUs, 1 of 2 are free"):
        gpus.take("a/W.1", 2)
    with pytest.raises(UserError, match="asks for 1 GPU, 0 of 0 are free"):
        Gpus([]).take("x", 1)
    assert gpus.table() == {"a/W.0": ["0"]}


class Taking(RuleBasedStateMachine):
    """No device has two owners, whatever is taken and given back."""

    owners = st.sampled_from("abcde")

    def __init__(self) -> None:
        super().__init__()
        self.gpus = Gpus([str(number) for number in range(4)])
        self.model: dict[str, list[str]] = {}

    @rule(owner=owners, count=st.integers(1, 3))
    def take(self, owner: str, count: int) -> None:
        held = self.model.get(owner, [])
        others = sum(len(taken) for name, taken in self.model.items() if name != owner)
        try:
            taken = self.gpus.take(owner, count)
        except UserError:
            assert count > 4 - others
            self.model.pop(owner, None)
            return
        assert len(taken) == count
        assert len(held) != count or taken == held, "the same ones each time it asks"
        self.model[owner] = list(taken)

    @rule(owner=owners)
    def give_back(self, owner: str) -> None:
        self.gpus.give_back(owner)
        self.model.pop(owner, None)

    @invariant()
    def nothing_is_shared(self) -> None:
        table = self.gpus.table()
        assert table == self.model
        taken = [device for held in table.values() for device in held]
        assert len(taken) == len(set(taken))
        assert set(taken) <= {"0", "1", "2", "3"}


TestTaking = Taking.TestCase
