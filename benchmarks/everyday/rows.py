"""Calibration rows as people have them: repeated, in clusters, the training rows, few, or drifted from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from benchmarks.everyday.registry import Outcome, judge, situation
from nobsp import NObSP

Array = NDArray[np.float64]

FRESH_ROWS = 4000


def tanh_network(columns: int, *, scale: float = 2.0, outputs: int = 1, seed: int = 0) -> nn.Module:
    """A network with random weights: its functions bend and interact, and nobody trained it on any row."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(columns, 32), nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, outputs)
        ).double()
        with torch.no_grad():
            for layer in (0, 2):
                network[layer].weight.mul_(scale)
    return network.eval()


def clustered_rows(
    *, clusters: int, rows_each: int, noise: float, columns: int = 10, seed: int = 0
) -> tuple[Array, NDArray[np.intp], Array]:
    """Rows around centres, which cluster each belongs to, and fresh rows of clusters of their own."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(clusters, columns))
    member = np.repeat(np.arange(clusters), rows_each)
    rows = centres[member] + noise * generator.normal(size=(len(member), columns))
    fresh = generator.normal(size=(FRESH_ROWS, columns)) * np.sqrt(1 + noise**2)
    return rows, member, fresh


@situation("independent rows, 2,000 × 10")
def independent() -> Outcome:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000, 10))
    return judge(NObSP(tanh_network(10)), rows, generator.normal(size=(FRESH_ROWS, 10)))


@situation("correlated rows (0.9), 2,000 × 10")
def correlated() -> Outcome:
    generator = np.random.default_rng(0)

    def draw(count: int) -> Array:
        common = generator.normal(size=(count, 1))
        return 0.9**0.5 * common + 0.1**0.5 * generator.normal(size=(count, 10))

    return judge(NObSP(tanh_network(10)), draw(2000), draw(FRESH_ROWS))


@situation("80 rows repeated to 2,000", findings=("low_share", "worse_than_mean", "few_rows"))
def repeated() -> Outcome:
    generator = np.random.default_rng(0)
    different = generator.normal(size=(80, 10))
    rows = different[generator.integers(0, 80, 2000)]
    return judge(NObSP(tanh_network(10)), rows, generator.normal(size=(FRESH_ROWS, 10)))


# Distinct rows before the rare class is repeated, the share of that class, and how often each of its rows is repeated.
POOL_ROWS = 400
RARE_SHARE = 0.05
COPIES = 20


@situation("positives (5% of 400 rows × 20) repeated twentyfold")
def oversampled() -> Outcome:
    generator = np.random.default_rng(0)
    network = tanh_network(20)

    def outputs(rows: Array) -> Array:
        with torch.no_grad():
            return np.asarray(network(torch.from_numpy(rows)).numpy()[:, 0])

    pool = generator.normal(size=(POOL_ROWS, 20))
    threshold = np.quantile(outputs(pool), 1 - RARE_SHARE)
    is_rare = outputs(pool) > threshold
    rows = np.concatenate([pool[~is_rare], np.repeat(pool[is_rare], COPIES, axis=0)])

    # Fresh rows have the same share of the rare class, without copies.
    candidates = generator.normal(size=(10 * FRESH_ROWS, 20))
    candidate_is_rare = outputs(candidates) > threshold
    rare_share = COPIES * RARE_SHARE / (COPIES * RARE_SHARE + 1 - RARE_SHARE)
    n_rare = min(int(candidate_is_rare.sum()), int(rare_share * FRESH_ROWS))
    n_usual = int(n_rare * (1 - rare_share) / rare_share)
    rare = candidates[candidate_is_rare][:n_rare]
    usual = candidates[~candidate_is_rare][:n_usual]
    return judge(NObSP(network), rows, np.concatenate([rare, usual]))


@situation("60 customers × 30 rows, no groups named", findings=("clusters",))
def customers() -> Outcome:
    rows, _, fresh = clustered_rows(clusters=60, rows_each=30, noise=0.05)
    return judge(NObSP(tanh_network(10)), rows, fresh)


@situation("60 customers × 30 rows, groups named", findings=("few_rows",))
def named_customers() -> Outcome:
    rows, member, fresh = clustered_rows(clusters=60, rows_each=30, noise=0.05)
    return judge(NObSP(tanh_network(10)), rows, fresh, groups=member)


@situation("150 looser clusters × 10 rows, no groups named", findings=("clusters",))
def loose_clusters() -> Outcome:
    rows, _, fresh = clustered_rows(clusters=150, rows_each=10, noise=0.3)
    return judge(NObSP(tanh_network(10, scale=3.0)), rows, fresh)


@situation("150 looser clusters × 10 rows, groups named", findings=("few_rows",))
def named_loose_clusters() -> Outcome:
    rows, member, fresh = clustered_rows(clusters=150, rows_each=10, noise=0.3)
    return judge(NObSP(tanh_network(10, scale=3.0)), rows, fresh, groups=member)


@situation("50 wide clusters × 20 rows, no groups named", findings=("clusters",))
def wide_clusters() -> Outcome:
    rows, _, fresh = clustered_rows(clusters=50, rows_each=20, noise=0.4, columns=6, seed=101)
    return judge(NObSP(tanh_network(6, seed=1), interactions=0), rows, fresh)


@situation("10 sites × 100 rows, groups named", findings=("few_rows",))
def named_sites() -> Outcome:
    rows, member, fresh = clustered_rows(clusters=10, rows_each=100, noise=0.3)
    return judge(NObSP(tanh_network(10)), rows, fresh, groups=member)


def _noisy_target(rows: Array, generator: np.random.Generator) -> Array:
    signal = np.sin(2 * rows[:, 0]) + rows[:, 1] * rows[:, 2] + rows[:, 3]
    return np.asarray(signal + generator.normal(size=len(rows)))


def _memorising_network() -> tuple[Any, Array, Array]:
    """A network that knows its 1,000 training rows by heart; those rows, and others."""
    from sklearn.neural_network import MLPRegressor

    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1000, 50))
    targets = _noisy_target(rows, generator)
    network = MLPRegressor(
        hidden_layer_sizes=(64, 64), alpha=0, max_iter=400, tol=0, random_state=0
    )
    others = generator.normal(size=(1000 + FRESH_ROWS, 50))
    return network.fit(rows, targets), rows, others


def _memorising_trees() -> tuple[Any, Array, Array]:
    """Boosted trees that know their 1,000 training rows by heart; those rows, and others."""
    from xgboost import XGBRegressor

    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1000, 50))
    targets = np.sin(1.5 * rows[:, :10]).sum(1) + generator.normal(size=1000)
    trees = XGBRegressor(n_estimators=60, max_depth=6, n_jobs=1, random_state=0)
    others = generator.normal(size=(1000 + FRESH_ROWS, 50))
    return trees.fit(rows, targets), rows, others


@situation("network, calibrated on its training rows", findings=("fresh_rows",))
def network_training_rows() -> Outcome:
    network, rows, others = _memorising_network()
    return judge(NObSP(network), rows, others[1000:])


@situation("network, calibrated on other rows")
def network_other_rows() -> Outcome:
    network, _, others = _memorising_network()
    return judge(NObSP(network), others[:1000], others[1000:])


@situation("XGBoost, calibrated on its training rows", findings=("fresh_rows",))
def trees_training_rows() -> Outcome:
    trees, rows, others = _memorising_trees()
    return judge(NObSP(trees), rows, others[1000:])


@situation("XGBoost, calibrated on other rows")
def trees_other_rows() -> Outcome:
    trees, _, others = _memorising_trees()
    return judge(NObSP(trees), others[:1000], others[1000:])


@situation("network of 300 features, calibrated on its training rows", findings=("fresh_rows",))
def wide_network_training_rows() -> Outcome:
    from sklearn.neural_network import MLPRegressor

    generator = np.random.default_rng(0)
    rows = generator.normal(size=(1000, 300))
    targets = _noisy_target(rows, generator)
    network = MLPRegressor(
        hidden_layer_sizes=(64, 64), alpha=0, max_iter=200, tol=0, random_state=0
    )
    network.fit(rows, targets)
    return judge(NObSP(network), rows, generator.normal(size=(FRESH_ROWS, 300)))


def _corner_model(rows: Array) -> Array:
    return np.asarray(rows[:, 0] + rows[:, 1] + 30 * rows[:, 2] * rows[:, 3] * rows[:, 4])


def _drifted_rows() -> tuple[Array, Array]:
    """Rows around the middle, and rows in a corner that each column alone reaches."""
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2000, 5))
    rows[:, 2:] *= 0.2
    drifted = generator.normal(size=(FRESH_ROWS, 5))
    drifted[:, 2:] = 0.6 + 0.01 * generator.normal(size=(FRESH_ROWS, 3))
    return rows, drifted


@situation("drift into a corner, each column in range", findings=("fresh_rows", "far"))
def drift() -> Outcome:
    return judge(NObSP(_corner_model), *_drifted_rows())


@situation("drift into a corner, no interactions fitted", findings=("fresh_rows",))
def drift_without_interactions() -> Outcome:
    return judge(NObSP(_corner_model, interactions=0), *_drifted_rows())


def _few_rows(number: int) -> Outcome:
    generator = np.random.default_rng(number)
    rows = generator.normal(size=(number, 6))
    return judge(NObSP(tanh_network(6)), rows, generator.normal(size=(FRESH_ROWS, 6)))


@situation("60 calibration rows", findings=("few_rows",))
def sixty_rows() -> Outcome:
    return _few_rows(60)


@situation("80 calibration rows", findings=("few_rows",))
def eighty_rows() -> Outcome:
    return _few_rows(80)


@situation("100 calibration rows", findings=("few_rows",))
def hundred_rows() -> Outcome:
    return _few_rows(100)


@situation("100 calibration rows × 10, a network that is hard to explain", findings=("few_rows",))
def hundred_hard_rows() -> Outcome:
    generator = np.random.default_rng(1)
    rows = generator.normal(size=(100, 10))
    network = tanh_network(10, scale=3.0, seed=1)
    return judge(NObSP(network), rows, generator.normal(size=(FRESH_ROWS, 10)))


@situation("100 customers × 15 rows, groups named", findings=("few_rows",))
def hundred_customers() -> Outcome:
    rows, member, fresh = clustered_rows(clusters=100, rows_each=15, noise=0.3, seed=1)
    return judge(NObSP(tanh_network(10, scale=3.0, seed=1)), rows, fresh, groups=member)


@situation("2 calibration rows", findings=("few_rows",), fails_well=True)
def two_rows() -> Outcome:
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(2, 3))
    return judge(NObSP(tanh_network(3, scale=1.0)), rows, generator.normal(size=(FRESH_ROWS, 3)))


@situation("a wave finer than the table, sin(400 x)", findings=("low_share", "coarse_table"))
def fine_wave() -> Outcome:
    generator = np.random.default_rng(0)
    rows = generator.uniform(-1, 1, size=(2000, 2))
    fresh = generator.uniform(-1, 1, size=(FRESH_ROWS, 2))
    return judge(NObSP(lambda x: np.sin(400 * x[:, 0]) + x[:, 1]), rows, fresh)
