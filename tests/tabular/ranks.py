"""What each rank of a calibration is given, and what one process makes of all of it; run as a script, one rank."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from nobsp import Local, NObSP, Ranks
from tests.tabular.nets import net, table
from tests.tolerances import COEFFICIENTS, CONTRIBUTIONS, assert_same_to_rounding

if TYPE_CHECKING:
    import pandas as pd

# Rows of each rank, for two and for three of them.
SIZES = {2: (411, 89), 3: (300, 37, 163)}
HOLLOW = {2: (0, 500), 3: (450, 0, 50)}


def cut(X: Any, size: int, *, hollow: bool = False) -> list[Any]:
    """A table in the ranks' shards."""
    ends = np.cumsum((HOLLOW if hollow else SIZES)[size])
    return [X[start:stop] for start, stop in zip([0, *ends[:-1]], ends, strict=True)]


def batches(X: np.ndarray) -> list[np.ndarray]:
    return [X[start : start + 50] for start in range(0, len(X), 50)]


def city_table(rows: int = 500) -> pd.DataFrame:
    """Sorted by city, so that every rank sees other cities."""
    import pandas as pd  # it starts a thread, and this module is imported before ranks are forked

    rng = np.random.default_rng(3)
    cities = np.sort(rng.choice(["bergen", "como", "oslo", "rome"], rows))
    return pd.DataFrame(
        {"age": rng.standard_normal(rows), "city": cities, "pay": rng.standard_normal(rows)}
    )


def city_model() -> Any:
    # These import pandas, too.
    from sklearn.compose import ColumnTransformer
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    frame = city_table()
    encode = ColumnTransformer(
        [("n", StandardScaler(), ["age", "pay"]), ("c", OneHotEncoder(), ["city"])]
    )
    target = frame["age"] * frame["pay"] + (frame["city"] == "oslo")
    network = MLPRegressor(hidden_layer_sizes=(8,), solver="lbfgs", max_iter=60, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return make_pipeline(encode, network).fit(frame, target)


Case = Callable[[int], tuple[Any, dict[str, Any], list[Any], Any]]


# Sums that are kept on the way: those of Algorithm 1.
RESUMED: dict[str, Any] = {"reference": "complement", "interactions": [["x0", "x1"]]}


def _plain(
    size: int, *, hollow: bool = False, **options: Any
) -> tuple[Any, dict[str, Any], list[Any], Any]:
    X = table("silu", 500)
    X[:, 4] = np.round(X[:, 4])
    return net("silu", outputs=2), options, cut(X, size, hollow=hollow), X


def _auto(size: int, **options: Any) -> tuple[Any, dict[str, Any], list[Any], Any]:
    X = table("gelu", 500, columns=4)
    return net("gelu", columns=4, outputs=2), {"interactions": "auto", **options}, cut(X, size), X


def _loader(size: int) -> tuple[Any, dict[str, Any], list[Any], Any]:
    """One rank has a loader over nothing."""
    model, options, shards, X = _plain(size, hollow=True, interactions=0)
    return (
        model,
        options,
        [DataLoader(TensorDataset(torch.tensor(s)), batch_size=32) for s in shards],
        X,
    )


def _once(size: int) -> tuple[Any, dict[str, Any], list[Any], Any]:
    """Each rank's batches can be read only once, and one rank has none."""
    model, options, shards, X = _plain(
        size, hollow=True, baseline="zero", interactions=[["x0", "x1"]]
    )
    return model, options, [iter(batches(s)) for s in shards], X


def _mixed(size: int) -> tuple[Any, dict[str, Any], list[Any], Any]:
    model, options, shards, X = _plain(size, baseline="zero", interactions=0)
    return model, options, [batches(shards[0]), *map(torch.tensor, shards[1:])], X


def _frame(size: int) -> tuple[Any, dict[str, Any], list[Any], Any]:
    return city_model(), {"interactions": [["age", "pay"]]}, cut(city_table(), size), city_table()


def _more_than_the_sample(size: int) -> tuple[Any, dict[str, Any], list[Any], Any]:
    """Bases come from another sample here, which a wide network would feel; this one has all directions."""
    X = table("tanh", 20_000, columns=3)
    shards = [X[:11_000], X[11_000:], X[:0]][:size]
    return (
        net("tanh", columns=3, width=4),
        {"reference": "complement", "interactions": 0},
        shards,
        X,
    )


CASES: dict[str, Case] = {
    "terms": lambda size: _plain(size, interactions=[["x0", "x1"]]),
    "complement": lambda size: _plain(size, reference="complement", interactions=0),
    "auto": _auto,
    "auto complement": lambda size: _auto(size, reference="complement"),
    "median": lambda size: _plain(size, baseline="median", interactions=0),
    "empty shard": lambda size: _plain(size, hollow=True, interactions=0),
    "empty loader": _loader,
    "once": _once,
    "mixed": _mixed,
    "frame": _frame,
    "large": _more_than_the_sample,
}


def bad(name: str, rank: int, size: int) -> tuple[Any, dict[str, Any], Any]:
    """What goes wrong on one rank, mostly the last."""
    model, options, shards, _ = _plain(size, interactions=0)
    X, last = shards[rank].copy(), rank == size - 1
    if name == "nan" and last:
        X[7, 2] = np.nan
    if name == "late nan":  # found only where rows are added up
        X[-1, 2] = np.nan if last else X[-1, 2]
        return model, {**options, "baseline": "zero"}, iter(batches(X))
    if name == "columns" and last:
        X = X[:, :4]
    if name == "option" and last:
        options["ridge"] = -1.0
    if name == "model" and last:
        model = net("silu", outputs=2, seed=5)
    if name == "plan" and rank == 0:
        options["interactions"] = [["x0", "nobody"]]
    if name == "nothing anywhere":
        X = X[:0]
    return model, options, X


FAILURES = ("nan", "late nan", "columns", "option", "model", "plan", "nothing anywhere")


class Failing:
    """Batches that can be read again and again, but not to their end in the second pass."""

    def __init__(self, parts: list[Any], *, at: int | None, passes: int = 2) -> None:
        self.parts, self.at, self.passes = parts, at, passes

    def __iter__(self) -> Iterator[Any]:
        self.passes -= 1
        for number, part in enumerate(self.parts):
            if number == self.at and self.passes == 0:
                raise OSError("the disk is gone")
            yield part


def numbers(explainer: NObSP) -> dict[str, Tensor]:
    """Everything a calibration comes to, as tensors."""
    fitted = explainer._fitted
    estimate, summary = fitted.estimate, fitted.summary
    found = {
        "base": torch.from_numpy(explainer.base_values_),
        "baseline": torch.from_numpy(explainer.baseline_),
        "minimum": summary.minimum,
        "maximum": summary.maximum,
        "rows": torch.tensor([summary.rows]),
        "explained": torch.from_numpy(explainer.explained_),
        "terms": torch.tensor([term + (-1,) * (3 - len(term)) for term in estimate.terms]),
    }
    if estimate.published is not None:
        solution = estimate.published.solution
        for term in estimate.terms:
            found[f"matrix {term}"], found[f"offset {term}"] = (
                solution.matrices[term],
                solution.offsets[term],
            )
    else:
        for one in explainer.functions_.tables:
            found[f"matrix {one.features}"] = torch.from_numpy(one.values)
    for feature, (values, counts) in summary.levels.items():
        found[f"levels {feature}"], found[f"counts {feature}"] = values, counts.double()
    return {name: tensor.contiguous() for name, tensor in found.items()}


def assert_same_numbers(
    found: dict[str, Tensor], expected: dict[str, Tensor], *, but: Collection[str] = ()
) -> None:
    """Two calibrations on the same rows: what was counted is equal, what was solved for has the size of a solution."""
    assert found.keys() == expected.keys()
    solved = [key for key in expected if key.startswith(("matrix", "offset"))]
    size = max(float(expected[key].abs().max()) for key in solved)
    for key in expected.keys() - set(but):
        if key in solved:
            assert_same_to_rounding(
                found[key], expected[key], within=COEFFICIENTS, size=size, what=key
            )
        else:
            assert_same_to_rounding(found[key], expected[key], within=CONTRIBUTIONS, what=key)


def run_rank(task: str, rank: int, size: int, folder: Path) -> None:
    """What one of the processes does."""
    dist = torch.distributed
    meeting = f"file://{folder}/meeting"
    dist.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=size, timeout=timedelta(seconds=200)
    )
    if task == "cases":
        for name, case in CASES.items():
            model, options, shards, _ = case(size)
            explainer = NObSP(model, **options).fit(shards[rank])
            safetensors.torch.save_file(numbers(explainer), folder / f"{name}-{rank}.safetensors")
    if task == "failures":
        for name in FAILURES:
            model, options, X = bad(name, rank, size)
            explainer = NObSP(model, **options)
            try:
                explainer.fit(X)
                said = "nothing"
            except (ValueError, RuntimeError) as failure:
                said = f"{type(failure).__name__}: {failure}"
            (folder / f"{name}-{rank}.txt").write_text(
                f"{said}\n{hasattr(explainer, '_calibration')}"
            )
        # Ranks that failed together go on together.
        model, options, shards, _ = CASES["terms"](size)
        NObSP(model, **options).fit(shards[rank])
        # Ranks that do not want to need not.
        if rank == 0:
            NObSP(model, **options).fit(shards[rank], engine=Local())
    if task == "resumed":
        model, options, shards, _ = _plain(size, **RESUMED)
        explainer, parts = NObSP(model, **options, batch_size=20), batches(shards[rank])
        engine = Ranks(checkpoint=folder / "under way", every=0)
        try:
            explainer.fit(Failing(parts, at=2 if rank == 0 else None), engine=engine)
        except (OSError, RuntimeError) as failure:
            held = sorted(file.name for file in folder.glob("under way*"))
            (folder / f"resumed-{rank}.txt").write_text(f"{failure}\n{held}")
        if rank == size - 1:  # its machine is gone, and its file with it
            (folder / f"under way.rank-{rank}-of-{size}").unlink(missing_ok=True)
        dist.barrier()
        explainer.fit(Failing(parts, at=None), engine=engine)
        safetensors.torch.save_file(numbers(explainer), folder / f"resumed-{rank}.safetensors")
    if task == "killed":
        model, options, shards, _ = _plain(size, interactions=0, baseline="zero")

        def rows() -> Any:
            for number, part in enumerate(batches(shards[rank])):
                if number == 1 and rank == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield part

        try:
            NObSP(model, **options).fit(rows())
        except RuntimeError as failure:
            (folder / f"killed-{rank}.txt").write_text(str(failure))
        os._exit(0)  # there is no group left to leave in good order
    dist.destroy_process_group()
