"""Rows and models that parts and pruning cannot use are refused by name, and frozen networks are pruned like others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from tests.parts.streams import drawn, rows
from tests.processes import LONGEST_RUN
from tests.tolerances import assert_same_to_rounding

ROWS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
ANSWERS: tuple[Callable[..., Any], ...] = (nobsp.explain_parts, nobsp.prune)


def network(columns: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(columns, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)
        )


UNREADABLE: dict[str, Callable[[], Any]] = {
    "sparse": ROWS.to_sparse,
    "meta": lambda: ROWS.to("meta"),
    "complex": lambda: ROWS.to(torch.complex64),
    "float8": lambda: ROWS.to(torch.float8_e4m3fn),
    "masked": lambda: np.ma.masked_array(ROWS.numpy(), mask=True),
}


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("name", UNREADABLE)
def test_rows_that_hold_no_plain_numbers_are_refused(answer: Callable[..., Any], name: str) -> None:
    with pytest.raises(TypeError, match="X"):
        answer(network(), UNREADABLE[name]())


@pytest.mark.parametrize("answer", ANSWERS)
def test_rows_that_the_model_cannot_take_are_told(answer: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match="model cannot take rows of X"):
        answer(network(columns=5), ROWS)


def words() -> nn.Module:
    """Reads token numbers up to 19."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(20, 4), nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2)
    )


@pytest.mark.parametrize("answer", ANSWERS)
def test_numbers_that_are_in_no_table_are_told_wherever_they_are(
    answer: Callable[..., Any],
) -> None:
    texts = torch.randint(0, 20, (60, 3))
    texts[50, 1] = 20
    with pytest.raises(ValueError, match="numbers from 0 to 20"):
        answer(words(), texts)


def test_further_rows_are_held_to_the_same() -> None:
    texts = torch.randint(0, 20, (60, 3))
    ex = nobsp.explain_parts(words(), texts)
    with pytest.raises(ValueError, match="numbers from"):
        ex.ablation(texts + 20)
    with pytest.raises(ValueError, match="rows of background"):
        nobsp.explain_parts(words(), texts, background=texts + 20)


class Broken(nn.Module):
    """Fails with whole numbers, but not for being whole."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.embed(x)
        raise RuntimeError("no kernel for this precision")


@pytest.mark.parametrize("answer", ANSWERS)
def test_whole_numbers_that_are_refused_for_another_reason_are_told_that_reason(
    answer: Callable[..., Any],
) -> None:
    with pytest.raises(ValueError, match="no kernel for this precision"):
        answer(Broken(), torch.randint(0, 20, (60, 3)))


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_model_that_answers_nan_is_refused(answer: Callable[..., Any]) -> None:
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="model answers NaN"):
        answer(model, ROWS)


@pytest.mark.parametrize("answer", ANSWERS)
def test_numbers_of_numpy_are_taken_as_they_are(answer: Callable[..., Any]) -> None:
    rows = ROWS.numpy()
    for same in (rows.astype(">f4"), rows.astype(np.longdouble)):
        answer(network(), same, batch_size=np.int64(7))


def test_a_frozen_network_is_pruned_and_stays_frozen() -> None:
    model = network().requires_grad_(False)
    pruned = nobsp.prune(model, ROWS, keep=0.5)
    assert not any(weight.requires_grad for weight in model.parameters())
    assert not any(weight.requires_grad for weight in pruned.model.parameters())


def test_parts_are_followed_beside_other_threads() -> None:
    network = drawn(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)))
    X = rows(12, 3)
    explanation = nobsp.explain_parts(network, X)
    alone = explanation.ablation(X).effects
    ended = threading.Event()
    # Whatever it does: random numbers of the process are watched in another way where there are threads.
    thread = threading.Thread(target=ended.wait, args=(LONGEST_RUN,))
    thread.start()
    try:
        assert_same_to_rounding(explanation.ablation(X).effects, alone)
    finally:
        ended.set()
        thread.join(LONGEST_RUN)


def test_switches_of_the_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two threads that set it and put it back would leave it as the other one had it.
    def refuse(_: bool) -> None:
        raise AssertionError("the fast path was switched for all threads")

    monkeypatch.setattr(torch.backends.mha, "set_fastpath_enabled", refuse)
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, norm_first=True)
    network = drawn(nn.Sequential(layer, nn.Flatten(), nn.Linear(18, 2)))
    X = rows(8, 3, 6)
    assert nobsp.explain_parts(network, X).values.shape[0] == 8
    nobsp.prune(network, X, keep=0.5)
