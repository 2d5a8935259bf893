"""The account of predictions: base, one contribution per term, and the residual that closes it."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Term = tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Predictions written as base + contributions + residual, exactly, row by row and output by output.

    `predictions == base_values + values.sum(1) + residual` holds to float64 rounding. Predictions are the
    network's logits (or regression outputs), never probabilities. With several classes, logits mean
    something only up to a shift that all classes share: `contrast` gives the account of one class against
    another, in which the shift is gone.

    Attributes:
        values: Contributions, shape (rows, terms, outputs).
        base_values: Mean output over the calibration rows, shape (outputs,).
        residual: What the terms leave unexplained, shape (rows, outputs).
        predictions: The network's outputs, shape (rows, outputs).
        terms: Names of the features in each term.
        feature_names: Names of all features.
        output_names: Names of the outputs.
        data: The rows as they were given.
        outside: Whether a feature's value lies outside the calibrated range, shape (rows, features).
        baseline_contributions: What each term contributes at the baseline, shape (terms, outputs).
    """

    values: Array
    base_values: Array
    residual: Array
    predictions: Array
    terms: tuple[Term, ...]
    feature_names: tuple[str, ...]
    output_names: tuple[str, ...]
    data: Any
    outside: NDArray[np.bool_]
    baseline_contributions: Array

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, terms, outputs)."""
        return tuple(self.values.shape)

    # ------------------------------------------------------------------ other views of the same account

    def total(self) -> Array:
        """Everything a feature takes part in: the sum of all terms that contain it, (rows, features, outputs).

        A pair counts for both of its features, so totals do not add up to the prediction.
        """
        member = np.array([[name in term for name in self.feature_names] for term in self.terms], dtype=float)
        totals: Array = np.einsum("rto,tf->rfo", self.values, member.reshape(len(self.terms), -1))
        return totals

    def from_baseline(self) -> Explanation:
        """The same account measured from the baseline instead of the mean (the paper's Δ-baseline attributions).

        Each contribution is g(x) − g(baseline), so a feature at its baseline contributes nothing; the base
        takes up the difference and the account still adds up.
        """
        return replace(
            self,
            values=self.values - self.baseline_contributions,
            base_values=self.base_values + self.baseline_contributions.sum(0),
            baseline_contributions=np.zeros_like(self.baseline_contributions),
        )

    def contrast(self, a: int | str, b: int | str) -> Explanation:
        """The account of one output against another: why `a` rather than `b`."""
        first, second = self._output(a), self._output(b)

        def difference(array: Array) -> Array:
            return array[..., first : first + 1] - array[..., second : second + 1]

        return replace(
            self,
            values=difference(self.values),
            base_values=difference(self.base_values),
            residual=difference(self.residual),
            predictions=difference(self.predictions),
            output_names=(f"{self.output_names[first]} − {self.output_names[second]}",),
            baseline_contributions=difference(self.baseline_contributions),
        )

    def explained(self) -> Array:
        """Share of each output's variance over these rows that the terms carry; negative if they add to it.

        NaN where an output does not vary.
        """
        total = self.predictions.var(0)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(total > 0, 1.0 - self.residual.var(0) / total, np.nan)

    def __getitem__(self, key: Any) -> Explanation:
        """Some rows, terms and outputs: `ex[3]`, `ex[:, "age"]`, `ex[:, ("age", "income")]`, `ex[:, :, "yes"]`.

        Terms left out are counted in the residual, so the account still adds up.
        """
        axes = key if isinstance(key, tuple) else (key,)
        if len(axes) > 3:
            raise IndexError(f"an explanation has rows, terms and outputs; found {len(axes)} indices.")
        rows, terms, outputs = (list(axes) + [slice(None)] * 3)[:3]
        row_index = _positions(rows, len(self))
        term_index = self._term_positions(terms)
        output_index = [self._output(o) for o in _listed(outputs)] if not isinstance(outputs, slice) else outputs
        values = self.values[row_index][:, :, output_index]
        predictions = self.predictions[row_index][:, output_index]
        base = self.base_values[output_index]
        kept = values[:, term_index]
        everything = isinstance(terms, slice) and terms == slice(None)
        residual = self.residual[row_index][:, output_index] if everything else predictions - base - kept.sum(1)
        names = np.array(self.output_names, dtype=object)[output_index]
        return replace(
            self,
            values=kept,
            base_values=base,
            residual=residual,
            predictions=predictions,
            terms=tuple(self.terms[i] for i in term_index),
            output_names=tuple(names),
            data=_rows_of(self.data, row_index),
            outside=self.outside[row_index],
            baseline_contributions=self.baseline_contributions[term_index][:, output_index],
        )

    # ------------------------------------------------------------------ leaving for other libraries

    def to_frame(self, output: int | str | None = None) -> Any:
        """The account as a frame of the caller's kind: base, one column per term, residual, prediction.

        Args:
            output: Which output; may be left out where there is only one.

        Returns:
            A pandas or polars frame, as the explained rows were; pandas, or else polars, where they were an
            array.
        """
        chosen = self._chosen(output)
        columns: dict[str, Array] = {"base": np.full(len(self), self.base_values[chosen])}
        columns |= {term_name(term): self.values[:, i, chosen] for i, term in enumerate(self.terms)}
        columns |= {"residual": self.residual[:, chosen], "prediction": self.predictions[:, chosen]}
        return frame_like(self.data, columns)

    def to_shap(self, output: int | str | None = None) -> Any:
        """A `shap.Explanation` for shap's plots; needs the shap package.

        A pair is shared equally between its features, as Shapley values would, and the residual is a column
        of its own: nothing is hidden, and the values add up to the prediction.

        Args:
            output: Which output; may be left out where there is only one.
        """
        try:
            import shap
        except ImportError as missing:
            raise ImportError("to_shap needs the shap package: pip install shap.") from missing
        chosen = self._chosen(output)
        shares = np.array([[(name in term) / len(term) for name in self.feature_names] for term in self.terms]).reshape(
            len(self.terms), len(self.feature_names)
        )
        values = np.column_stack([self.values[:, :, chosen] @ shares, self.residual[:, chosen]])
        return shap.Explanation(
            values=values,
            base_values=np.full(len(self), self.base_values[chosen]),
            data=np.column_stack(
                [_data_matrix(self.data, len(self), len(self.feature_names)), np.full(len(self), np.nan)]
            ),
            feature_names=[*self.feature_names, "(residual)"],
            output_names=self.output_names[chosen],
        )

    # ------------------------------------------------------------------ looking at it

    def __repr__(self) -> str:
        explained = self.explained()
        share = f", {_percent(explained)} of the variance explained" if len(self) > 1 else ""
        strongest = ", ".join(name for name, _ in self._strongest(3))
        return (
            f"Explanation({len(self)} rows, {len(self.terms)} terms, {len(self.output_names)} outputs{share}; "
            f"strongest: {strongest})"
        )

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td style='text-align:right'>{value:.4g}</td></tr>"
            for name, value in self._strongest(10)
        )
        explained = _percent(self.explained()) if len(self) > 1 else "–"
        return (
            f"<table><caption>{len(self)} rows, {html.escape(', '.join(self.output_names[:5]))}: "
            f"{explained} of the variance explained</caption>"
            f"<thead><tr><th>term</th><th>mean |contribution|</th></tr></thead><tbody>{rows}"
            f"<tr><td><i>residual</i></td><td style='text-align:right'>{np.abs(self.residual).mean():.4g}</td></tr>"
            "</tbody></table>"
        )

    def _strongest(self, count: int) -> list[tuple[str, float]]:
        if len(self) == 0:
            return []
        sizes = np.abs(self.values).mean((0, 2))
        return [(term_name(self.terms[i]), float(sizes[i])) for i in np.argsort(-sizes, kind="stable")[:count]]

    # ------------------------------------------------------------------ finding things by name

    def _output(self, output: int | str) -> int:
        return output_position(output, self.output_names)

    def _chosen(self, output: int | str | None) -> int:
        if output is None:
            if len(self.output_names) > 1:
                raise ValueError(f"output must be chosen among {', '.join(self.output_names)}.")
            return 0
        return self._output(output)

    def _term_positions(self, terms: Any) -> list[int]:
        if isinstance(terms, slice):
            return list(range(len(self.terms)))[terms]
        if isinstance(terms, str) or (isinstance(terms, tuple) and terms and all(isinstance(t, str) for t in terms)):
            terms = [terms]
        return [self._term(term) for term in _listed(terms)]

    def _term(self, term: Any) -> int:
        if isinstance(term, int | np.integer) and not isinstance(term, bool):
            return range(len(self.terms))[int(term)]
        wanted = (term,) if isinstance(term, str) else tuple(term)
        for position, names in enumerate(self.terms):
            if set(names) == set(wanted) and len(names) == len(wanted):
                return position
        raise KeyError(f"no term {term_name(wanted)!r}; there are {', '.join(map(term_name, self.terms[:12]))}.")


def term_name(term: Sequence[str]) -> str:
    """A term in words.

    Example:
        >>> term_name(("age", "income"))
        'age × income'
    """
    return " × ".join(term)


def output_position(output: int | str, names: Sequence[str]) -> int:
    """Position of an output given by position or name."""
    if isinstance(output, str):
        if output not in names:
            raise ValueError(f"no output {output!r}; there are {', '.join(names)}.")
        return list(names).index(output)
    if isinstance(output, bool) or not isinstance(output, int | np.integer):
        raise TypeError(f"output must be a position or a name, found {output!r}.")
    if not -len(names) <= output < len(names):
        raise ValueError(f"output is {output}, but there are {len(names)} outputs.")
    return int(output) % len(names)


def frame_like(data: Any, columns: dict[str, Any]) -> Any:
    """Columns as a frame of the same kind as `data`, or of any kind that is installed."""
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        return nw.from_dict(columns, backend=frame.implementation).to_native()
    for backend in ("pandas", "polars"):
        try:
            return nw.from_dict(columns, backend=backend).to_native()
        except ImportError:
            continue
    raise ImportError("a frame needs pandas or polars: pip install 'nobsp[frames]'.")


def _listed(given: Any) -> list[Any]:
    if isinstance(given, str | int | np.integer):
        return [given]
    return list(given)


def _positions(rows: Any, count: int) -> Any:
    """Rows as an index that keeps the row axis."""
    if isinstance(rows, int | np.integer) and not isinstance(rows, bool):
        if not -count <= rows < count:
            raise IndexError(f"row {rows} is out of range; there are {count} rows.")
        start = int(rows) % count
        return slice(start, start + 1)
    return rows if isinstance(rows, slice) else np.asarray(rows)


def _rows_of(data: Any, rows: Any) -> Any:
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    if isinstance(frame, nw.DataFrame):
        positions = np.arange(len(frame))[rows]
        return frame[positions.tolist()].to_native()
    return data[rows] if data is not None else None


def _data_matrix(data: Any, rows: int, features: int) -> NDArray[Any]:
    import narwhals as nw

    frame = nw.from_native(data, eager_only=True, pass_through=True)
    matrix = np.asarray(frame.to_numpy() if isinstance(frame, nw.DataFrame) else data)
    return matrix if matrix.shape == (rows, features) else np.full((rows, features), np.nan)


def _percent(shares: Array) -> str:
    known = shares[np.isfinite(shares)]
    if known.size == 0:
        return "–"
    low, high = f"{known.min():.1%}", f"{known.max():.1%}"
    return low if low == high else f"{low} to {high}"
