"""A calibration that is interrupted goes on where it was, or says why it cannot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from nobsp import Local, NObSP
from tests.processes import environment, run_process
from tests.tabular import interrupted
from tests.tabular.nets import Counted, net, table
from tests.tabular.ranks import Failing, numbers

# How often a calibration is killed before it may come to its end, and the seed of the moments.
KILLS = 5
SEED = 7


def pieces(X: np.ndarray) -> list[np.ndarray]:
    return [X[start : start + 50] for start in range(0, len(X), 50)]


def whole(X: np.ndarray) -> Failing:
    """The same batches from a disk that does not fail."""
    return Failing(pieces(X), at=None)


def interrupt(
    explainer: NObSP,
    X: np.ndarray,
    path: Path,
    *,
    at: int = 6,
    passes: int = 2,
    every: float = 0,
    **options: Any,
) -> None:
    """Calibrates until the disk fails."""
    with pytest.raises(OSError, match="the disk is gone"):
        explainer.fit(
            Failing(pieces(X), at=at, passes=passes), engine=Local(path, every), **options
        )
    assert path.is_file()


def assert_same(found: dict[str, torch.Tensor] | NObSP, expected: NObSP) -> None:
    """Equal up to the rounding of a solve: rows were added in the same batches, and read back as they were."""
    a, b = numbers(found) if isinstance(found, NObSP) else found, numbers(expected)
    assert a.keys() == b.keys()
    scale = max(float(value.abs().max()) for key, value in b.items() if key.startswith("matrix"))
    for key, value in b.items():
        np.testing.assert_allclose(
            a[key], value, rtol=1e-9, atol=1e-9 * max(scale, 1.0), err_msg=key
        )


# ---------------------------------------------------------------------- going on


@pytest.mark.parametrize(("case", "every"), [("terms", 0.03), ("complement", 0.0), ("once", 0.0)])
def test_a_killed_calibration_goes_on_and_ends_as_if_it_had_not_been(
    case: str, every: float, tmp_path: Path
) -> None:
    """SIGKILL at random moments, again and again; what is lost is at most an interval each time."""
    run_process(
        [sys.executable, "-m", "tests.tabular.interrupted", case, tmp_path, every, KILLS, SEED],
        env=environment(OMP_NUM_THREADS="1"),
    )
    found = safetensors.torch.load_file(tmp_path / "found")
    assert_same(found, interrupted.calibrate(case, 0.0))
    killed = int((tmp_path / "killed").read_text())
    assert killed > 0
    if every == 0:
        assert len((tmp_path / "log").read_text()) <= interrupted.BATCHES + killed
    assert sorted(file.name for file in tmp_path.iterdir()) == ["found", "killed", "log"]


def test_rows_that_were_added_up_do_not_go_through_the_network_again(tmp_path: Path) -> None:
    model, X, path = Counted(net("relu")), table("relu", 500), tmp_path / "under way"
    explainer = NObSP(model, reference="complement", interactions=0)
    expected = NObSP(model, reference="complement", interactions=0)
    model.forget()
    expected.fit(whole(X))
    in_full = model.rows
    interrupt(explainer, X, path, at=9)
    model.forget()
    explainer.fit(whole(X), engine=Local(path))
    assert_same(explainer, expected)
    # What is left: one batch of ten, no plan; the head is found again, and the result measured, as ever.
    assert model.rows < 0.65 * in_full


def test_the_automatic_choice_of_pairs_is_kept(tmp_path: Path) -> None:
    model, X, path = net("gelu", columns=4), table("gelu", 600, columns=4), tmp_path / "under way"
    explainer, expected = NObSP(model), NObSP(model).fit(whole(X))
    interrupt(explainer, X, path, passes=1)
    explainer.fit(whole(X), engine=Local(path))
    assert len(expected.terms_) > 4
    assert_same(explainer, expected)
    strengths = expected.interaction_strengths()["strength"]
    np.testing.assert_array_equal(explainer.interaction_strengths()["strength"], strengths)


def test_a_calibration_like_another_goes_on_too(tmp_path: Path) -> None:
    model, X, path = net("relu"), table("relu", 600), tmp_path / "under way"
    first = NObSP(model, reference="complement", interactions=0).fit(table("relu", 100, seed=3))
    explainer, expected = (
        NObSP(model, reference="complement", interactions=0),
        NObSP(model, reference="complement", interactions=0).fit(whole(X), like=first),
    )
    interrupt(explainer, X, path, passes=1, like=first)
    assert_same(explainer.fit(whole(X), engine=Local(path), like=first), expected)


def test_the_file_is_gone_when_the_calibration_is_done(tmp_path: Path) -> None:
    X, path = table("relu", 300), tmp_path / "under way"
    found = NObSP(net("relu"), reference="complement", interactions=0).fit(X, engine=Local(path, 0))
    assert not list(tmp_path.iterdir())
    assert_same(found, NObSP(net("relu"), reference="complement", interactions=0).fit(X))


def test_the_plan_is_kept_before_any_row_is_added_up(tmp_path: Path) -> None:
    X, path = table("relu", 600), tmp_path / "under way"
    explainer = NObSP(net("relu"), reference="complement", interactions=0)
    interrupt(explainer, X, path, at=1, every=1e9)
    assert_same(
        explainer.fit(whole(X), engine=Local(path)),
        NObSP(net("relu"), reference="complement", interactions=0).fit(whole(X)),
    )


def test_what_a_killed_process_had_begun_to_write_is_swept_up_and_nothing_else(
    tmp_path: Path,
) -> None:
    path = tmp_path / "under way"
    others = ("other way.0123456789abcdef.part", "under way.0123.part", "under way.part")
    for name in ("under way.0123456789abcdef.part", *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".tmpBegun").touch()
    NObSP(net("relu"), reference="complement", interactions=0).fit(
        table("relu", 300), engine=Local(path)
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(others)


# ---------------------------------------------------------------------- not going on


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Path, np.ndarray]:
    X, path = table("relu", 600), tmp_path / "under way"
    interrupt(NObSP(net("relu"), reference="complement", interactions=0), X, path)
    return path, X


def refuse(
    begun: tuple[Path, np.ndarray],
    match: str,
    data: Any = None,
    *,
    model: Any = None,
    **options: Any,
) -> None:
    path, X = begun
    before = path.read_bytes()
    explainer = NObSP(
        net("relu") if model is None else model,
        **{"reference": "complement", "interactions": 0, **options},
    )
    with pytest.raises(ValueError, match=match):
        explainer.fit(whole(X) if data is None else data, engine=Local(path))
    assert not hasattr(explainer, "_calibration")
    assert path.read_bytes() == before


def test_another_model_is_refused(begun: tuple[Path, np.ndarray]) -> None:
    refuse(
        begun,
        "another calibration .the model differs.*remove it to start anew",
        model=net("relu", seed=1),
    )


@pytest.mark.parametrize(
    "options",
    [
        {"ridge": 1e-3},
        {"ridge": 1e-3, "ridge_scale": "absolute"},
        {"reference": "terms"},
        {"baseline": "median"},
        {"interactions": 1},
        {"batch_size": 25},
        {"features": list("abcde")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_other_options_are_refused(options: dict[str, Any], begun: tuple[Path, np.ndarray]) -> None:
    refuse(begun, f"option {next(iter(options))} differs", **options)


@pytest.mark.parametrize("change", ["first", "held", "later", "order", "more", "batches"])
def test_other_rows_are_refused(change: str, begun: tuple[Path, np.ndarray]) -> None:
    X = begun[1].copy()
    if change in ("first", "held", "later"):
        X[{"first": 3, "held": 120, "later": 580}[change], 1] += 1e-9
    if change == "order":
        X = X[::-1].copy()
    if change == "more":
        X = np.vstack([X, X[:50]])
    rows = whole(X)
    if change == "batches":
        rows.parts = [X[i : i + 60] for i in range(0, 600, 60)]
    refuse(begun, "cannot be resumed", rows)


def test_another_number_of_rows_is_refused(tmp_path: Path) -> None:
    X, path = table("relu", 600), tmp_path / "under way"
    explainer = NObSP(net("relu"), reference="complement", interactions=0)
    explainer.fit(X)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "unlink", lambda self, **_: None)
        explainer.fit(X, engine=Local(path))
    with pytest.raises(ValueError, match="cannot be resumed"):
        NObSP(net("relu"), reference="complement", interactions=0).fit(X[:599], engine=Local(path))


@pytest.mark.parametrize("change", ["held", "fewer"])
def test_other_rows_are_refused_where_they_are_read_once(change: str, tmp_path: Path) -> None:
    X, path = table("relu", 20_000), tmp_path / "under way"
    parts = [X[start : start + 2000] for start in range(0, len(X), 2000)]
    explainer = NObSP(net("relu"), reference="complement", interactions=0, baseline="zero")
    with pytest.raises(OSError, match="the disk is gone"):
        explainer.fit(iter(Failing(parts, at=9, passes=1)), engine=Local(path, 0))
    X[2120, 1] += 1e-9 if change == "held" else 0
    with pytest.raises(ValueError, match="18000 rows that are not the first ones"):
        explainer.fit(iter(parts[:4] if change == "fewer" else parts), engine=Local(path))


@pytest.mark.parametrize("length", [0, 7, 500, -1])
def test_a_truncated_file_is_refused(length: int, begun: tuple[Path, np.ndarray]) -> None:
    begun[0].write_bytes(begun[0].read_bytes()[:length])
    refuse(begun, "cannot be resumed: .*damaged")


@pytest.mark.parametrize("kind", ["text", "explainer"])
def test_a_file_of_another_kind_is_refused(kind: str, begun: tuple[Path, np.ndarray]) -> None:
    path, _ = begun
    if kind == "text":
        path.write_text("a shopping list\n" * 20)
    else:
        safetensors.torch.save_file({"eggs": torch.ones(6)}, path)
    refuse(begun, "cannot be resumed")


def test_a_folder_that_does_not_exist_is_an_error_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"checkpoint is in .*create it first"):
        NObSP(net("relu"), reference="complement", interactions=0).fit(
            table("relu", 300), engine=Local(tmp_path / "nowhere" / "under way")
        )


@pytest.mark.parametrize("every", [-1.0, float("nan"), float("inf"), "60", True])
def test_an_interval_that_is_none_is_an_error(every: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="every"):
        Local(tmp_path / "under way", every)
