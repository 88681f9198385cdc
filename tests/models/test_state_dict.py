"""A PyTorch checkpoint is found in its file, fits or is refused by name, and runs no code."""

import os
import pickle

import pytest
import torch

from helpers.errors import CheckpointError
from helpers.models._torch import state_dict
from tests.models.builders import Command, refusal


@pytest.fixture
def network():
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2)).eval()


def load(path, network, optional=""):
    tensors = state_dict.unwrap(state_dict.read(path), path)
    state_dict.place(tensors, network, path, "Net", optional)


def refused(path, network):
    text = refusal(CheckpointError, load, path, network)
    assert text.startswith(f"{path} ")
    return text.removeprefix(f"{path} ")


@pytest.fixture
def save(tmp_path):
    def write(content, **options):
        torch.save(content, tmp_path / "c.pt", **options)
        return tmp_path / "c.pt"

    return write


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_it_is_found_alone_and_wrapped(wrapper, prefix, network, save):
    wanted = {name: torch.rand(t.shape).to(t.dtype) for name, t in network.state_dict().items()}
    state = {prefix + name: tensor for name, tensor in wanted.items()}

    load(save({wrapper: state, "epoch": 3} if wrapper else state), network)

    assert all(torch.equal(each, wanted[name]) for name, each in network.state_dict().items())


def test_it_may_lack_what_is_optional(network, save):
    state = {n: t + 1 for n, t in network.state_dict().items() if not n.endswith("_tracked")}
    path = save(state, _use_new_zipfile_serialization=False)  # as in 2017

    load(path, network, "_tracked")

    assert torch.equal(network.state_dict()["0.bias"], state["0.bias"])
    assert refused(path, network) == "does not fit Net: missing 1.num_batches_tracked [] int64"


def test_a_missing_a_surplus_and_a_misshapen_tensor_are_named(network, save):
    state = dict(network.state_dict())
    del state["1.weight"]
    state["head.weight"] = torch.zeros(4, 2)
    state["0.weight"] = torch.zeros(5, 3)
    state["0.bias"] = torch.zeros(2, dtype=torch.int64)
    assert refused(save(state), network) == (
        "does not fit Net: missing 1.weight [2]; surplus head.weight [4, 2]; "
        "0.weight is [5, 3] and should be [2, 3]; 0.bias is [2] int64 and should be [2]"
    )
    found = refused(save({"head": torch.zeros(4)}), network)
    assert found.startswith("does not fit Net: missing 0.weight [2, 3]; missing 0.bias [2]; ")
    assert found.endswith("; and 3 more")


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([1, 2], "has no state dict, neither alone nor as 'state_dict' or 'model'"),
        ({}, "has no state dict, neither alone nor as 'state_dict' or 'model'"),
        ({"epoch": 3}, "has no state dict: 'epoch' is a int"),
        ({1: torch.zeros(1)}, "has no state dict: 1 is a Tensor"),
        (
            {"a": torch.zeros(1), "module.a": torch.zeros(1)},
            "has a twice, the second time as module.a",
        ),
    ],
)
def test_a_file_that_holds_no_state_dict_is_refused(content, text, network, save):
    assert refused(save(content), network) == text


def test_a_truncated_checkpoint_other_bytes_and_no_file_are_refused(network, save, tmp_path):
    path = save(network.state_dict())
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"no checkpoint", os.urandom(1000)):
        path.write_bytes(content)
        assert refused(path, network).startswith("is not a whole PyTorch checkpoint: ")
    for absent in (tmp_path / "absent.pt", tmp_path):
        text = "is not a file. Use a checkpoint saved by torch.save."
        assert refused(absent, network) == text


@pytest.mark.parametrize("protocol", ["torch.save", 0, 2, 4, 5])
def test_a_checkpoint_that_tries_to_run_code_leaves_no_trace(protocol, network, save, tmp_path):
    content = {"extra": Command(f"touch {tmp_path / 'trace'}"), **network.state_dict()}
    path = save(content)
    if isinstance(protocol, int):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
    text = "was rejected, because it tries to run posix.system. Save only its state dict."
    assert refused(path, network) == text
    assert list(tmp_path.iterdir()) == [path]
