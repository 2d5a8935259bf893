"""Layers are found by name or by themselves, under whatever torch wrapped them in."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn

from nobsp.network.layers import explain_failure, find_part

MODEL = nn.Sequential(OrderedDict(body=nn.Linear(3, 4), head=nn.Linear(4, 2)))


@pytest.mark.parametrize("name", ["head", "module.head", "_orig_mod.head"])
def test_a_layer_is_found_under_the_names_that_wrappers_give_it(name: str) -> None:
    assert find_part(MODEL, name, argument="layer") == ("head", MODEL.head)


def test_a_layer_itself_is_found_by_what_it_is() -> None:
    assert find_part(MODEL, nn.DataParallel(MODEL.body), argument="layer")[0] == "body"


def test_other_layers_are_refused_with_the_likely_ones() -> None:
    with pytest.raises(ValueError, match="'head'"):
        find_part(MODEL, "haed", argument="layer")
    with pytest.raises(ValueError, match="not part of the model"):
        find_part(MODEL, nn.Linear(3, 4), argument="layer")
    with pytest.raises(TypeError, match="layer"):
        find_part(MODEL, 3, argument="layer")  # type: ignore[arg-type]


def test_failures_of_unknown_kinds_are_left_alone() -> None:
    device = torch.device("cpu")
    explain_failure(RuntimeError("?"), torch.zeros(2, 3), dtype=torch.float32, device=device)
