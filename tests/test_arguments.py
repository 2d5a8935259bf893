"""What callers pass is checked where it comes in, and the error names the argument."""

import numpy as np
import pytest
import torch
from torch import nn

import nobsp
from nobsp import arguments


@pytest.fixture(scope="module")
def explainer():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    rows = np.random.default_rng(0).normal(size=(24, 3))
    return nobsp.NObSP(network, interactions=0, background=4).fit(rows)


@pytest.mark.parametrize("value", ["c", 1, np.zeros(3), {}, None])
def test_what_is_none_of_the_choices_is_refused(value):
    with pytest.raises(ValueError, match="space"):
        arguments.require_choice("space", value, ("a", "b"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.1, 10**400])
def test_numbers_out_of_range_are_refused(value):
    with pytest.raises(ValueError, match="share"):
        arguments.require_number("share", value, least=0, most=1)


@pytest.mark.parametrize("value", ["0.5", True, 1j, [0.5], np.array([0.5]), None])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(ValueError, match="share"):
        arguments.require_number("share", value, least=0, most=1)


def test_numbers_of_numpy_are_numbers():
    assert arguments.require_number("share", np.float32(0.5), least=0, most=1) == 0.5


@pytest.mark.parametrize("path", ["", "a\0b", "a" * 300])
def test_names_that_no_file_can_have_are_refused(path):
    with pytest.raises(ValueError, match="path"):
        arguments.path_of(path)


@pytest.mark.parametrize("path", [None, 3, b"file", ["file"]])
def test_what_is_no_path_is_refused(path):
    with pytest.raises(TypeError, match="path"):
        arguments.path_of(path)


@pytest.mark.parametrize(
    "values",
    [
        np.ones(3) + 1j,
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.array(["a"]),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        [object()],
        len,
    ],
)
def test_what_is_no_real_number_is_refused(values):
    with pytest.raises(TypeError, match="outputs"):
        arguments.numbers_of(values, name="outputs")


def test_rows_with_a_mask_are_refused(explainer):
    rows = np.ma.masked_array(np.zeros((4, 3)), mask=np.eye(4, 3))
    with pytest.raises(TypeError, match="X is a masked array"):
        explainer(rows)


def test_unsigned_numbers_that_would_turn_negative_are_refused(explainer):
    with pytest.raises(ValueError, match="X has whole numbers above"):
        explainer.fit(np.full((4, 3), 2**63 + 5, dtype=np.uint64))


def test_eight_bit_floats_are_floats(explainer):
    rows = torch.eye(3)
    found = explainer(rows.to(torch.float8_e4m3fn))
    np.testing.assert_allclose(found.values, explainer(rows).values, atol=1e-6)


@pytest.mark.parametrize("value", [3, "x", object(), nobsp.NObSP])
def test_what_is_no_explainer_cannot_be_merged_or_followed(explainer, value):
    with pytest.raises(TypeError, match="other"):
        explainer.merge(value)
    with pytest.raises(TypeError, match="like"):
        nobsp.NObSP(explainer.model).fit(np.zeros((4, 3)), like=value)


@pytest.mark.parametrize("value", [3, "x", object(), [1, 2]])
@pytest.mark.parametrize("argument", ["hits", "influence", "audit", "truth", "title", "about"])
def test_parts_of_a_report_are_checked(explainer, argument, value, tmp_path):
    if isinstance(value, str) and argument in ("title", "about"):
        return
    rows = np.random.default_rng(0).normal(size=(4, 3))
    with pytest.raises(TypeError, match=argument):
        nobsp.report(explainer(rows), tmp_path / "page.html", **{argument: value})
    assert list(tmp_path.iterdir()) == []
