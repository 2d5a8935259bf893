"""What a column says of a model's outputs: R² or accuracy, a warning where a constant would do as well, and a better
order of the classes' names."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import r2_score

from nobsp.cli.cam import check_order
from nobsp.cli.explain import score_predictions

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=50)
CODES = np.arange(60) % 3
RIGHT = np.eye(3)[CODES] + 0.1 * RNG.normal(size=(60, 3))
HALVES = np.arange(50) % 2


def found(
    logits: np.ndarray, labels: object, names: list[str], link: str = "identity"
) -> dict[str, object]:
    logits = logits.reshape(len(logits), -1)
    return score_predictions(
        logits, pd.Series(labels), target="truth", output_names=names, link=link
    )


def test_values_are_judged_by_r2() -> None:
    noisy = VALUES + 0.5 * RNG.normal(size=50)
    near, far = found(noisy, VALUES, ["output"]), found(-VALUES, VALUES, ["output"])
    assert near["value"] == pytest.approx(r2_score(VALUES, noisy))
    assert (near["measure"], near["warning"]) == ("r2", None)
    assert far["value"] == pytest.approx(r2_score(VALUES, -VALUES))
    assert far["warning"]


def test_a_log_rate_is_judged_as_a_rate() -> None:
    assert found(VALUES, np.exp(VALUES), ["output"], "exp")["value"] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (CODES, ["a", "b", "c"]),
        (CODES.astype(float), ["a", "b", "c"]),
        (np.array(["a", "b", "c"])[CODES], ["a", "b", "c"]),
        (CODES + 1, ["1", "2", "3"]),
    ],
)
def test_classes_are_judged_by_accuracy_however_they_are_written(
    labels: np.ndarray, names: list[str]
) -> None:
    right, wrong = found(RIGHT, labels, names), found(RIGHT[:, [1, 2, 0]], labels, names)
    assert (right["measure"], right["value"], right["warning"]) == ("accuracy", 1.0, None)
    assert wrong["value"] == 0.0
    assert wrong["warning"]


@pytest.mark.parametrize(
    ("logits", "labels", "names", "link"),
    [
        (HALVES - 0.5, HALVES, ["output"], "identity"),
        (HALVES - 0.5, HALVES, ["output"], "sigmoid"),
        (HALVES - 0.5, HALVES == 1, ["output"], "sigmoid"),
        (HALVES - 0.5, np.array(["no", "yes"])[HALVES], ["yes"], "identity"),
        (HALVES - 0.5, 2 * HALVES - 1, ["output"], "identity"),
    ],
)
def test_one_logit_tells_two_classes_apart(
    logits: np.ndarray, labels: object, names: list[str], link: str
) -> None:
    right = found(logits, labels, names, link)
    assert (right["measure"], right["value"], right["warning"]) == ("accuracy", 1.0, None)
    assert found(-logits, labels, names, link)["warning"] is not None


def test_an_output_trained_to_give_zero_and_one_is_not_taken_for_a_logit() -> None:
    judged = found(0.1 + 0.8 * HALVES, HALVES, ["output"])
    assert (judged["measure"], judged["warning"]) == ("r2", None)


def test_rows_without_a_value_are_left_out() -> None:
    gaps = np.where(np.arange(50) < 10, np.nan, VALUES)
    assert found(np.where(np.arange(50) < 10, 1e6, VALUES), gaps, ["output"])[
        "value"
    ] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        (RIGHT, np.array(["x", "y", "z"])[CODES]),
        (VALUES, np.array(["x", "y"])[HALVES]),
        (VALUES, np.ones(50)),
    ],
)
def test_what_cannot_be_told_is_not_guessed(logits: np.ndarray, labels: object) -> None:
    judged = found(logits, labels, ["a", "b", "c"][: logits[0].size])
    assert (judged["measure"], judged["value"], judged["warning"]) == (None, None, None)


# ---------------------------------------------------------------------- names in the wrong order

DIGITS = ["zero", "one", "two", "three"]


def test_the_order_that_fits_is_the_one_that_is_named() -> None:
    names = sorted(DIGITS)
    labels = [word for word in DIGITS for _ in range(10)]
    predicted = [names[DIGITS.index(word)] for word in labels]
    predicted[0] = names[3]
    assert check_order(labels, predicted, names).endswith("pass --output-names zero one two three")


@pytest.mark.parametrize(
    "predicted",
    [
        [word for word in DIGITS for _ in range(10)],  # right
        [word for word in DIGITS for _ in range(4)]
        + DIGITS * 6,  # poor, and no other order is better
        ["zero"] * 40,  # always the same
    ],
)
def test_names_in_the_right_order_are_left_alone(predicted: list[str]) -> None:
    assert check_order([word for word in DIGITS for _ in range(10)], predicted, DIGITS) is None
