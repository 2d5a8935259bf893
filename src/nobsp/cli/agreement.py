"""How well predictions agree with what is true, and what to ask where they do not."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Another order of the names is worth a word where most predictions agree with it, and many more than with this one.
_MOST, _MANY_MORE = 0.5, 0.3


@dataclass(frozen=True)
class Agreement:
    """How well a model predicts a target.

    Attributes:
        target: Name of the column.
        measure: "r2" or "accuracy"; None where it cannot be told.
        value: The number.
        said: A sentence on it.
        warning: What to ask where the model predicts no better than a constant would.
    """

    target: str
    measure: str | None
    value: float | None
    said: str
    warning: str | None = None

    def described(self) -> dict[str, Any]:
        """For --json."""
        return {"target": self.target, "measure": self.measure, "value": self.value, "warning": self.warning}


def agreement_of(
    logits: NDArray[np.float64], labels: Any, *, target: str, output_names: Sequence[str], link: str
) -> Agreement:
    """Compares a model's outputs with a column: R² where it holds values, accuracy where it holds classes.

    A single output is a logit where a sigmoid follows, or where the column takes two values.

    Example:
        >>> import numpy as np, pandas as pd
        >>> found = agreement_of(np.array([[3.0], [2.0], [1.0]]), pd.Series([1.0, 2.0, 3.0]), target="price",
        ...                      output_names=["output"], link="identity")
        >>> found.measure, found.value
        ('r2', -3.0)
        >>> found.warning[-34:]
        'is the order of the columns right?'
    """
    import numpy as np

    known = labels.notna().to_numpy() & np.isfinite(logits).all(1)
    logits, values = logits[known], labels[known].to_numpy()
    numeric = values.dtype.kind in "iufb"
    texts = np.array([_text(value) for value in values.tolist()])
    if len(texts) == 0:
        return Agreement(target, None, None, f"{target} has no values to compare with.")
    if logits.shape[1] > 1:
        predicted = logits.argmax(1)
        if set(texts) <= set(output_names):
            return _accuracy(target, np.array([str(name) for name in output_names])[predicted] == texts, texts)
        if numeric and set(texts) <= {str(number) for number in range(logits.shape[1])}:
            return _accuracy(target, predicted == values.astype(np.int64), texts)
        if numeric and target in output_names:
            return _r2(target, logits[:, list(output_names).index(target)], values, link)
        return _unknown(target, "its values are neither the names of the outputs (--output-names) nor their numbers")
    logit = logits[:, 0]
    different = np.unique(texts)
    if len(different) <= 2 and output_names[0] in different:
        return _accuracy(target, (logit > 0) == (texts == output_names[0]), texts)
    if not numeric:
        return _unknown(target, "it holds words, and the one output does not say which of them it speaks for")
    values = values.astype(np.float64)
    if link == "sigmoid" and not set(different) <= {"0", "1"} and len(different) != 2:
        return _unknown(target, "the output is the logit of a class, and the column holds other numbers than 0 and 1")
    if link != "sigmoid" and len(different) != 2:
        return _r2(target, logit, values, link)
    positive = max(values.max(), 1.0) if len(different) == 1 else values.max()
    found = _accuracy(target, (logit > 0) == (values == positive), texts)
    if found.warning is None or link == "sigmoid":
        return found
    # It may also have been trained to give the two values themselves.
    as_values = _r2(target, logit, values, link)
    return found if as_values.warning else as_values


def _text(value: Any) -> str:
    """A label as names are written: class 1 is "1", also where a gap has made the column fractional."""
    if isinstance(value, bool):
        return str(int(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _accuracy(target: str, right: NDArray[np.bool_], texts: NDArray[np.str_]) -> Agreement:
    value = float(right.mean())
    frequent, count = Counter(texts.tolist()).most_common(1)[0]
    usual = count / len(texts)
    said = f"The model predicts {target} with an accuracy of {value:.1%} (always {frequent!r}: {usual:.1%})."
    warning = None
    if value <= usual < 1:
        warning = (
            f"the model predicts {target} with an accuracy of {value:.1%}, no better than always {frequent!r} "
            f"({usual:.1%}); is the order of the columns right?"
        )
    return Agreement(target, "accuracy", value, said, warning)


def _r2(target: str, logit: NDArray[np.float64], values: NDArray[Any], link: str) -> Agreement:
    import numpy as np

    truth = values.astype(np.float64)
    spread = float(((truth - truth.mean()) ** 2).sum())
    if spread == 0:
        return _unknown(target, "it is the same in every row")
    predicted = np.exp(logit) if link == "exp" else logit
    value = 1 - float(((truth - predicted) ** 2).sum()) / spread
    warning = None
    if value <= 0:
        warning = (
            f"the model predicts {target} with R² {value:.3g}, no better than its mean would; "
            "is the order of the columns right?"
        )
    return Agreement(target, "r2", value, f"The model predicts {target} with R² {value:.3g}.", warning)


def _unknown(target: str, why: str) -> Agreement:
    return Agreement(target, None, None, f"How well the model predicts {target} cannot be told: {why}.")


def wrong_order(
    labels: Sequence[str | None], predicted: Sequence[str], names: Sequence[str], *, option: str = "--output-names"
) -> str | None:
    """A warning where the images' folders say that the classes are named in the wrong order.

    Every folder claims the class most often predicted for its images. Where that gives each folder a class of its own,
    and far more predictions then agree with their folders, the names are taken to be in the wrong order.

    Example:
        >>> wrong_order(["one", "two", "one"], ["two", "one", "two"], ["one", "two"])[-27:]
        'pass --output-names two one'
    """
    pairs = [(label, found) for label, found in zip(labels, predicted, strict=True) if label is not None]
    if {label for label, _ in pairs} != set(names):
        return None
    claimed: dict[str, str] = {}
    agreeing = 0
    for folder in names:
        ((found, count),) = Counter(found for label, found in pairs if label == folder).most_common(1)
        claimed[found] = folder
        agreeing += count
    now, then = sum(label == found for label, found in pairs) / len(pairs), agreeing / len(pairs)
    if len(claimed) < len(names) or then < _MOST or then - now < _MANY_MORE:
        return None
    order = shlex.join(claimed[name] for name in names)
    return (
        f"{now:.1%} of the predictions agree with the folders, but {then:.1%} would if the classes were named in "
        f"another order; if that is how the model was trained, pass {option} {order}"
    )
