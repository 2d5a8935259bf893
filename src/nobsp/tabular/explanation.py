"""The account of predictions: base, one contribution per term, and the residual that closes it."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nobsp._messages import count, frame_of, free_name, join_names, require_whole_number, suggest
from nobsp.arguments import require_choice
from nobsp.base import Finding, Plots, describe_findings
from nobsp.tabular.reading import read_columns
from nobsp.tabular.scoring import compare_with_headline, far_finding, share_on_rows

Array = NDArray[np.float64]
Term = tuple[str, ...]

# Nodes of the rule that carries an account over to probabilities; what more would mend is in the residual.
_MOST_NODES = 256
# Arrays whose last axis is the outputs.
_PER_OUTPUT = ("values", "base_values", "residual", "predictions", "baseline_contributions")


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Predictions written as base + contributions + residual, exactly, row by row and output by output.

    `predictions == base_values + values.sum(1) + residual` holds to float64 rounding. Predictions are the network's
    logits (or regression outputs), never probabilities. Logits of several classes mean something only up to a shift
    that all classes share, which is gone in `contrast`.

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
        explainer: The functions behind this account, without the network.
        scale: What the account is of: "output" for logits and regression outputs, "probability" for what their link
            makes of them.
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
    explainer: Any = field(default=None, repr=False)
    scale: str = "output"

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, terms, outputs)."""
        return tuple(self.values.shape)

    def total(self) -> Array:
        """Everything a feature takes part in: the sum of all terms that contain it, (rows, features, outputs).

        A pair counts for both of its features, so totals do not add up to the prediction.
        """
        return self._per_feature([1.0] * len(self.terms))

    def _per_feature(self, shares: Sequence[float]) -> Array:
        """Contributions added up by feature, (rows, features, outputs): of every term a share to each of its own."""
        found = np.zeros((len(self), len(self.feature_names), len(self.output_names)))
        place = {name: position for position, name in enumerate(self.feature_names)}
        for position, (term, share) in enumerate(zip(self.terms, shares, strict=True)):
            for name in term:
                found[:, place[name]] += share * self.values[:, position]
        return found

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
        return replace(
            self,
            **{
                name: getattr(self, name)[..., [first]] - getattr(self, name)[..., [second]]
                for name in _PER_OUTPUT
            },
            output_names=(f"{self.output_names[first]} − {self.output_names[second]}",),
        )

    def to_probability(self, *, link: str | None = None) -> Explanation:
        """The account on the scale of probabilities (of means, where the link is exp); it still adds up exactly.

        Contributions to the outputs are carried over by the link's mean slope on the straight line from the base to the
        prediction (Aumann and Shapley's rule). The base is the link of the base, not the mean probability.

        Args:
            link: "softmax", "sigmoid" or "exp"; the model's own by default.
        """
        require_choice("link", link, (None, "softmax", "log_softmax", "sigmoid", "exp"))
        known = link or getattr(self.explainer, "link", None)
        known = "softmax" if known == "log_softmax" else known
        if self.scale != "output":
            raise ValueError("this account is one of probabilities already.")
        if known not in ("softmax", "sigmoid", "exp"):
            raise ValueError(
                f"the model's link is {known!r}; pass the one you apply: 'softmax', 'sigmoid' or 'exp'."
            )
        outputs = len(getattr(self.explainer, "output_names", self.output_names))
        if known == "softmax" and (len(self.output_names) != outputs or outputs == 1):
            raise ValueError(
                "a softmax needs the outputs of all classes; call to_probability before choosing some."
            )
        base, center = _apply_link(self.base_values[None], known), self.base_values
        values = _carry_over(self.values, center, self.predictions, known)
        at_baseline = center + self.baseline_contributions.sum(0)
        predictions = _apply_link(self.predictions, known)
        return replace(
            self,
            values=values,
            base_values=base[0],
            residual=predictions - base - values.sum(1),
            predictions=predictions,
            baseline_contributions=_carry_over(
                self.baseline_contributions[None], center, at_baseline[None], known
            )[0],
            explainer=None,
            scale="probability",
        )

    def explained(self) -> Array:
        """R² of the terms on these rows, per output: 1 − Σ residual² / Σ (prediction − mean prediction)².

        A residual that is the same for all rows counts too. NaN where an output does not vary.
        """
        known = np.isfinite(self.residual).all(1)  # rows with a missing value may not have been run
        return share_on_rows(self.predictions[known], self.residual[known])

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth knowing of these rows: R² clearly below the headline, or combinations far from all seen."""
        if self.explainer is None or self.scale != "output":
            return ()
        complete = len(self.terms) == len(self.explainer.terms) + len(self.explainer.left_out)
        if self.output_names != self.explainer.output_names or not complete:
            return ()
        known = np.isfinite(self.residual).all(1)
        findings = [
            compare_with_headline(
                self.predictions[known],
                self.residual[known],
                self.explainer.state,
                self.output_names,
            ),
            far_finding(self.far),
        ]
        return tuple(finding for finding in findings if finding is not None)

    @cached_property
    def far(self) -> NDArray[np.bool_]:
        """Rows whose combination of numbers is far from all calibration rows though each is in range, (rows,).

        `outside` tells of single values, this of their combination. Categories do not count.
        """
        reach = getattr(self.explainer, "reach", None)
        if reach is None or not len(self):
            return np.zeros(len(self), dtype=bool)
        columns, _ = read_columns(self.explainer, self.data)
        return np.asarray(reach.beyond(columns) & ~self.outside.any(1))

    def __getitem__(self, key: Any) -> Explanation:
        """Some rows, terms and outputs: `ex[3]`, `ex[:, "age"]`, `ex[:, ("age", "income")]`, `ex[:, :, "yes"]`.

        Rows go by position, slice, list of positions or mask; terms and outputs also by name. Terms left out are
        counted in the residual, so the account still adds up.
        """
        rows, terms, outputs = _three_axes(key)
        if isinstance(terms, tuple) and terms and all(isinstance(name, str) for name in terms):
            terms = [terms]
        row_index = _positions(rows, len(self), "rows", self._row)
        term_index = _positions(terms, len(self.terms), "terms", self._term)
        output_index = _positions(outputs, len(self.output_names), "outputs", self._output)
        values = self.values[row_index][:, term_index][:, :, output_index]
        predictions, base = (
            self.predictions[row_index][:, output_index],
            self.base_values[output_index],
        )
        everything = isinstance(terms, slice) and terms == slice(None)
        residual = (
            self.residual[row_index][:, output_index]
            if everything
            else predictions - base - values.sum(1)
        )
        return replace(
            self,
            values=values,
            base_values=base,
            residual=residual,
            predictions=predictions,
            terms=tuple(self.terms[i] for i in term_index),
            output_names=tuple(self.output_names[i] for i in output_index),
            data=take_rows(self.data, row_index),
            outside=self.outside[row_index],
            baseline_contributions=self.baseline_contributions[term_index][:, output_index],
        )

    def top(self, k: int) -> Explanation:
        """The `k` terms with the largest mean absolute contribution; the others are counted in the residual."""
        require_whole_number("k", k, least=0)
        sizes = self._mean_sizes()
        return self[:, np.sort(np.argsort(-sizes, kind="stable")[:k])]

    def _mean_sizes(self) -> Array:
        """Per term its mean absolute contribution, over the rows where it is known."""
        known = np.isfinite(self.values)
        sizes = np.where(known, np.abs(self.values), 0.0).sum((0, 2))
        return np.asarray(sizes / np.maximum(known.sum((0, 2)), 1))

    def order(self, size: int) -> Explanation:
        """Only terms of `size` features: 1 for main effects, 2 for pairs; the others are counted in the residual."""
        require_whole_number("size", size)
        return self[:, [len(term) == size for term in self.terms]] if self.terms else self

    def __add__(self, other: Explanation) -> Explanation:
        """The account of two models' summed outputs on the same rows; a term that one lacks contributes nothing there.

        With `-` it is what changed from one model to another, and with `*` a mean: `(a + b) * 0.5`.
        """
        if not isinstance(other, Explanation):
            return NotImplemented
        for what, mine, theirs in (
            ("features", self.feature_names, other.feature_names),
            ("outputs", self.output_names, other.output_names),
            ("numbers of rows", len(self), len(other)),
        ):
            if mine != theirs:
                raise ValueError(
                    f"the explanations have different {what}; explain both with the same."
                )
        terms = tuple(dict.fromkeys([*self.terms, *other.terms]))
        values = np.zeros((len(self), len(terms), len(self.output_names)))
        at_baseline = np.zeros(values.shape[1:])
        for ex in (self, other):
            places = [terms.index(term) for term in ex.terms]
            values[:, places] += ex.values
            at_baseline[places] += ex.baseline_contributions
        return replace(
            self,
            values=values,
            base_values=self.base_values + other.base_values,
            residual=self.residual + other.residual,
            predictions=self.predictions + other.predictions,
            terms=terms,
            outside=self.outside | other.outside,
            baseline_contributions=at_baseline,
            explainer=None,
        )

    def __mul__(self, factor: float) -> Explanation:
        """The account of the outputs times a number."""
        if not np.isscalar(factor) or isinstance(factor, str | bytes):
            return NotImplemented
        return replace(
            self, **{name: getattr(self, name) * factor for name in _PER_OUTPUT}, explainer=None
        )

    __rmul__ = __mul__

    def __neg__(self) -> Explanation:
        return self * -1.0

    def __sub__(self, other: Explanation) -> Explanation:
        return self + -other if isinstance(other, Explanation) else NotImplemented

    @property
    def plot(self) -> Plots:
        """Its plots: `ex.plot.waterfall(0)`, `ex.plot.beeswarm()`, `ex.plot.importance()`, `ex.plot.ledger()`."""
        return Plots(
            self, ("beeswarm", "importance", "interaction_matrix", "ledger", "waterfall", "windows")
        )

    def to_frame(self, output: int | str | None = None) -> Any:
        """The account as a frame of the caller's kind: base, one column per term, residual, prediction.

        The index of a pandas frame is kept; an array's account is a pandas frame, or else a polars one.

        Args:
            output: Which output; may be left out where there is only one.
        """
        chosen = self._chosen(output)
        names = _column_names(self.terms)

        def free(name: str) -> str:
            """A feature may be called "base" too: the account's own columns give way."""
            return free(f"({name})") if name in names else name

        return frame_like(
            self.data,
            {
                free("base"): np.full(len(self), self.base_values[chosen]),
                **{name: self.values[:, i, chosen] for i, name in enumerate(names)},
                free("residual"): self.residual[:, chosen],
                free("prediction"): self.predictions[:, chosen],
            },
        )

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
        values = self._per_feature([1 / len(term) for term in self.terms])[:, :, chosen]
        return shap.Explanation(
            values=np.column_stack([values, self.residual[:, chosen]]),
            base_values=np.full(len(self), self.base_values[chosen]),
            data=np.column_stack(
                [_data_matrix(self.data, len(self), self.feature_names), np.full(len(self), np.nan)]
            ),
            feature_names=[*self.feature_names, "(residual)"],
            output_names=self.output_names[chosen],
        )

    def __repr__(self) -> str:
        share = f", R² {_shares(self.explained())}" if len(self) > 1 else ""
        strongest = ", ".join(name for name, _ in self._strongest(3))
        sizes = ((len(self), "row"), (len(self.terms), "term"), (len(self.output_names), "output"))
        counts = ", ".join(count(*size) for size in sizes)
        said = "".join(f"\n{line}" for line in describe_findings(self.findings) if self.findings)
        return (
            f"Explanation({counts}{share}{f'; strongest: {strongest}' if strongest else ''}){said}"
        )

    def _repr_html_(self) -> str:
        known_residuals = np.abs(self.residual[np.isfinite(self.residual)])
        left = known_residuals.mean() if len(known_residuals) else np.nan
        sizes = [
            *((html.escape(name), size) for name, size in self._strongest(10)),
            ("<i>residual</i>", left),
        ]
        rows = "".join(
            f"<tr><td>{name}</td><td style='text-align:right'>{size:.4g}</td></tr>"
            for name, size in sizes
        )
        explained = _shares(self.explained()) if len(self) > 1 else "–"
        warned = "".join(
            f"<p>{html.escape(line)}</p>"
            for line in describe_findings(self.findings)
            if self.findings
        )
        return (
            f"<table><caption>{count(len(self), 'row')}, {html.escape(', '.join(self.output_names[:5]))}: "
            f"R² {explained}</caption><thead><tr><th>term</th><th>mean |contribution|</th></tr>"
            f"</thead><tbody>{rows}</tbody></table>{warned}"
        )

    def _strongest(self, count: int) -> list[tuple[str, float]]:
        if len(self) == 0:
            return []
        sizes = self._mean_sizes()
        return [
            (term_name(self.terms[i]), float(sizes[i]))
            for i in np.argsort(-sizes, kind="stable")[:count]
        ]

    def _output(self, output: int | str) -> int:
        return output_position(output, self.output_names)

    def _chosen(self, output: int | str | None) -> int:
        if output is None and len(self.output_names) > 1:
            among = ", ".join(map(repr, self.output_names))
            raise ValueError(
                f"output must be chosen among {among}, as in output={self.output_names[0]!r}."
            )
        return self._output(0 if output is None else output)

    def _row(self, row: Any) -> int:
        if isinstance(row, bool) or not isinstance(row, int | np.integer):
            hint = f"; ex[:, {row!r}] chooses a term" if isinstance(row, str) else ""
            raise IndexError(f"rows are chosen by position, slice or mask, found {row!r}{hint}.")
        return _in_range(row, len(self), "row")

    def _term(self, term: Any) -> int:
        if isinstance(term, int | np.integer) and not isinstance(term, bool):
            return _in_range(term, len(self.terms), "term")
        if not isinstance(term, str | tuple | list):
            raise TypeError(
                f"a term is chosen by position, name or tuple of names, found {term!r}."
            )
        wanted = (term,) if isinstance(term, str) else tuple(map(str, term))
        for position, names in enumerate(self.terms):
            if set(names) == set(wanted) and len(names) == len(wanted):
                return position
        known = _column_names(self.terms)
        if term in known:  # as frames and plots call it
            return known.index(str(term))
        raise ValueError(f"no term {term_name(wanted)!r}; {suggest(term_name(wanted), known)}")


def term_name(term: Sequence[str]) -> str:
    """A term in words."""
    return " × ".join(term)


def _apply_link(outputs: Array, link: str) -> Array:
    if link == "sigmoid":
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * outputs)))  # overflows nowhere
    if link == "exp":
        return np.asarray(np.exp(outputs))
    shifted = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def _carry_over(values: Array, start: Array, stop: Array, link: str) -> Array:
    """Contributions times the link's mean Jacobian on the line from `start` to `stop`, by Gauss and Legendre's rule.

    For a softmax Σ_k ∂p_c/∂y_k g_k = p_c (g_c − Σ_k p_k g_k).
    """
    change = stop - start
    finite = change[np.isfinite(change).all(1)]
    # Sigmoid and softmax are analytic up to a distance of π over the change: the error is exp(−2 n asinh(2π/change)).
    reach = (
        float(np.ptp(finite, axis=1).max() if link == "softmax" else np.abs(finite).max())
        if finite.size
        else 1.0
    )
    count = min(_MOST_NODES, math.ceil(18 / math.asinh(2 * math.pi / max(reach, 1.0))))
    carried = np.zeros_like(values)
    for node, share in zip(*np.polynomial.legendre.leggauss(count), strict=True):
        chances = _apply_link(start + 0.5 * (node + 1.0) * change, link)[:, None]
        if link == "softmax":
            inner = values - (values * chances).sum(2, keepdims=True)
        else:
            inner = values if link == "exp" else values * (1.0 - chances)
        carried += 0.5 * share * chances * inner
    return carried


def _column_names(terms: Sequence[Term]) -> list[str]:
    """One name per term; where a feature's name reads like another term's, the larger term is put in brackets."""
    taken: dict[str, int] = {}
    for position in sorted(range(len(terms)), key=lambda place: len(terms[place])):
        taken[free_name(term_name(terms[position]), taken)] = position
    return sorted(taken, key=taken.__getitem__)


def output_position(output: int | str, names: Sequence[str], what: str = "output") -> int:
    """Position of an output, or of something else, given by position or name."""
    if isinstance(output, str):
        if output not in names:
            raise ValueError(f"no {what} {output!r}; {suggest(output, names)}")
        return list(names).index(output)
    if isinstance(output, bool) or not isinstance(output, int | np.integer):
        raise TypeError(f"{what} must be a position or a name, found {output!r}.")
    if not -len(names) <= output < len(names):
        raise ValueError(
            f"{what} is {output}, but there are {count(len(names), what)}: {join_names(names, 12)}."
        )
    return int(output) % len(names)


class ColumnTable(dict[str, Any]):
    """Columns by name, for where pandas is not installed."""

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self)


def as_table(columns: dict[str, Any]) -> Any:
    """A pandas frame where pandas is installed, else a `ColumnTable`; the same kind whatever was fitted."""
    try:
        import pandas as pd
    except ImportError:
        return ColumnTable(columns)
    return pd.DataFrame(columns)


def frame_like(data: Any, columns: dict[str, Any]) -> Any:
    """Columns as a frame of the same kind as `data`, or of any kind that is installed."""
    import narwhals as nw

    frame = frame_of(data)
    if frame is not None:
        made = nw.from_dict(columns, backend=frame.implementation).to_native()
        index = nw.maybe_get_index(frame)
        if index is not None:  # so that it can be joined with the rows it explains
            made.index = index
        return made
    for backend in ("pandas", "polars"):
        try:
            return nw.from_dict(columns, backend=backend).to_native()
        except ImportError:
            continue
    raise ImportError("a frame needs pandas or polars: pip install 'nobsp[frames]'.")


def _three_axes(key: Any) -> list[Any]:
    """Rows, terms and outputs of an index; what is not said is everything."""
    axes = list(key) if isinstance(key, tuple) else [key]
    dots = [position for position, axis in enumerate(axes) if axis is Ellipsis]
    if len(dots) == 1:
        axes[dots[0] : dots[0] + 1] = [slice(None)] * (4 - len(axes))
    if len(axes) > 3 or len(dots) > 1:
        raise IndexError(f"an explanation has rows, terms and outputs; found {len(axes)} indices.")
    return axes + [slice(None)] * (3 - len(axes))


def _in_range(position: int | np.integer[Any], size: int, what: str) -> int:
    if not -size <= position < size:
        raise IndexError(f"{what} {position} is out of range; there are {count(size, what)}.")
    return int(position) % size


def _positions(asked: Any, count: int, axis: str, find: Callable[[Any], int]) -> list[int]:
    """Positions along an axis as a list, which keeps the axis: by slice or mask, or each found by itself."""
    if isinstance(asked, slice):
        return list(range(count)[asked])
    asked = asked.tolist() if hasattr(asked, "tolist") else asked
    if isinstance(asked, str) or not isinstance(asked, Iterable):
        return [find(asked)]
    entries = list(asked)
    if entries and all(isinstance(entry, bool | np.bool_) for entry in entries):
        if len(entries) != count:
            raise IndexError(f"the mask has {len(entries)} entries but there are {count} {axis}.")
        return np.flatnonzero(entries).tolist()
    return [find(entry) for entry in entries]


def take_rows(data: Any, rows: Any) -> Any:
    """Some rows of a frame, an array or a tensor, by position."""
    frame = frame_of(data)
    if frame is not None:
        return frame[rows, :].to_native()
    return data[rows] if data is not None else None


def _data_matrix(data: Any, rows: int, features: Sequence[str]) -> NDArray[Any]:
    """The explained rows, one column per feature; NaN where a feature is no single column of theirs."""
    frame = frame_of(data)
    if frame is not None:
        # By name where names are features: the caller's columns may come in any order.
        named = {str(name): position for position, name in enumerate(frame.columns)}
        if len(named) == len(features) and not set(features) & set(named):
            named = {feature: position for position, feature in enumerate(features)}
        columns = [
            frame[:, named[f]].to_numpy() if f in named else np.full(rows, np.nan) for f in features
        ]
        return np.column_stack(columns)
    shape = rows, len(features)
    return np.asarray(data) if np.shape(data) == shape else np.full(shape, np.nan)


def _shares(shares: Array) -> str:
    known = shares[np.isfinite(shares)]
    if known.size == 0:
        return "–"
    low = f"{known.min():.3f}".replace("-", "−")
    high = f"{known.max():.3f}".replace("-", "−")
    return low if low == high else f"{low} to {high}"
