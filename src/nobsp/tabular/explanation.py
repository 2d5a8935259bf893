"""The account of predictions: base, one contribution per term, and the residual that closes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from nobsp import notebook
from nobsp._typing import AnyArray, BoolArray, FloatArray, NativeFrame, TableLike
from nobsp.arguments import count, free_name, require_choice, require_whole_number
from nobsp.base import Plots
from nobsp.elsewhere import EXPLANATION, NamesFromElsewhere
from nobsp.findings import Finding, describe_findings
from nobsp.frames import frame_like, frame_of, take_rows
from nobsp.numerics import gauss_legendre
from nobsp.tabular.health import (
    compare_with_headline,
    far_finding,
    outside_finding,
    share_on_rows,
    unpredicted_finding,
)
from nobsp.tabular.indexing import (
    Term,
    column_names,
    find_positions,
    output_position,
    row_position,
    split_axes,
    term_name,
    term_position,
)
from nobsp.tabular.lookup import read_columns

# Arrays whose last axis is the outputs.
_PER_OUTPUT = ("values", "base_values", "residual", "predictions", "baseline_contributions")
# Terms that are named when an explanation is printed, and when a notebook shows it.
_PRINTED_TERMS = 3
_SHOWN_TERMS = 10
# Outputs named in the caption of a notebook's table.
_SHOWN_OUTPUTS = 5


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(NamesFromElsewhere):
    """Predictions written as base + contributions + residual, exactly, for each row and output.

    `predictions == base_values + values.sum(1) + residual` holds to float64 rounding. Predictions
    are the network's logits (or regression outputs), never probabilities. Logits of several classes
    mean something only up to a shift that all classes share, which is gone in `contrast`.

    Attributes:
        values: Contributions, shape (rows, terms, outputs).
        base_values: Mean output over the calibration rows, shape (outputs,).
        residual: What the terms leave unexplained, shape (rows, outputs).
        predictions: The network's outputs, shape (rows, outputs).
        terms: Names of the features in each term.
        feature_names: Names of all features.
        output_names: Names of the outputs.
        data: The rows as they were given.
        outside: Whether a feature's value lies outside the calibrated range, shape (rows,
            features).
        baseline_contributions: What each term contributes at the baseline, shape (terms, outputs).
        explainer: The functions behind this account, without the network.
        scale: What the account is of: "output" for logits and regression outputs, "probability" for
            what their link makes of them.
        origin: The functions that the account was read from, on whichever scale it is now; None
            after arithmetic.
        link: What was applied to the outputs: "identity", or the link that `to_probability` used.
    """

    values: FloatArray
    base_values: FloatArray
    residual: FloatArray
    predictions: FloatArray
    terms: tuple[Term, ...]
    feature_names: tuple[str, ...]
    output_names: tuple[str, ...]
    data: TableLike
    outside: BoolArray
    baseline_contributions: FloatArray
    explainer: Any = field(default=None, repr=False)
    scale: str = "output"
    origin: Any = field(default=None, repr=False)
    link: str = "identity"
    _elsewhere = EXPLANATION

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, terms, outputs)."""
        return tuple(self.values.shape)

    def total(self) -> FloatArray:
        """Everything a feature takes part in: the sum of all terms that contain it.

        Shape (rows, features, outputs).

        A pair counts for both of its features, so totals do not add up to the prediction.
        """
        return self._per_feature([1.0] * len(self.terms))

    def _per_feature(self, shares: Sequence[float]) -> FloatArray:
        """Contributions added up by feature, shape (rows, features, outputs).

        Of every term, each of its features gets the share given for it.
        """
        sums = np.zeros((len(self), len(self.feature_names), len(self.output_names)))
        positions = {name: position for position, name in enumerate(self.feature_names)}
        for number, term in enumerate(self.terms):
            contribution = shares[number] * self.values[:, number]
            for name in term:
                sums[:, positions[name]] += contribution
        return sums

    def from_baseline(self) -> Explanation:
        """The same account from the baseline, not the mean (the paper's Δ-baseline attributions).

        Each contribution is g(x) − g(baseline), so a feature at its baseline contributes nothing;
        the base takes up the difference and the account still adds up.
        """
        return replace(
            self,
            values=self.values - self.baseline_contributions,
            base_values=self.base_values + self.baseline_contributions.sum(0),
            baseline_contributions=np.zeros_like(self.baseline_contributions),
        )

    def contrast(self, a: int | str, b: int | str) -> Explanation:
        """The account of one output against another: why `a` rather than `b`."""
        first = output_position(a, self.output_names, argument="a")
        second = output_position(b, self.output_names, argument="b")
        differences = {}
        for name in _PER_OUTPUT:
            array = getattr(self, name)
            differences[name] = array[..., [first]] - array[..., [second]]

        label = f"{self.output_names[first]} − {self.output_names[second]}"
        return replace(self, **differences, output_names=(label,))

    def to_probability(self, *, link: str | None = None) -> Explanation:
        """The account on the scale of probabilities (of means, where the link is exp).

        It still adds up exactly.

        Contributions to the outputs are carried over by the link's mean slope on the straight line
        from the base to the prediction (Aumann and Shapley's rule). The base is the link of the
        base, not the mean probability. Terms that pull in opposite directions may each be larger
        than 1; only their sum is a probability. Where that happens, the result says so
        (`findings`).

        Args:
            link: "softmax", "sigmoid" or "exp"; the model's own by default.
        """
        chosen_link = self._usable_link(link)
        base = apply_link(self.base_values[None], chosen_link)
        predictions = apply_link(self.predictions, chosen_link)
        values = carry_over(self.values, self.base_values, self.predictions, chosen_link)

        outputs_at_baseline = self.base_values + self.baseline_contributions.sum(0)
        at_baseline = carry_over(
            self.baseline_contributions[None],
            self.base_values,
            outputs_at_baseline[None],
            chosen_link,
        )
        return replace(
            self,
            values=values,
            base_values=base[0],
            residual=predictions - base - values.sum(1),
            predictions=predictions,
            baseline_contributions=at_baseline[0],
            explainer=None,
            scale="probability",
            link=chosen_link,
        )

    def _usable_link(self, link: str | None) -> str:
        """The link asked for, or the model's own.

        Raises a ValueError where it cannot be applied to this account.
        """
        require_choice("link", link, (None, "softmax", "log_softmax", "sigmoid", "exp"))
        chosen = link or getattr(self.explainer, "link", None)
        if chosen == "log_softmax":
            chosen = "softmax"
        if self.scale != "output":
            raise ValueError(
                "this explanation is in probabilities already; call to_probability once."
            )
        if chosen not in ("softmax", "sigmoid", "exp"):
            raise ValueError(
                f"the model's outputs are explained as they are (link {chosen!r}). If they are "
                "probabilities already, "
                "as those of forests are, this account is in probabilities; "
                'if you apply a link to them, name it, as in to_probability(link="softmax"); '
                '"sigmoid" and "exp" are '
                "the others."
            )

        n_classes = len(getattr(self.explainer, "output_names", self.output_names))
        has_all_classes = len(self.output_names) == n_classes > 1
        if chosen == "softmax" and not has_all_classes:
            raise ValueError(
                "a softmax needs the outputs of all classes; call to_probability before choosing "
                "some."
            )
        return str(chosen)

    def explained(self) -> FloatArray:
        """R² of the terms per output: 1 − Σ residual² / Σ (prediction − mean prediction)².

        It is measured on these rows.

        A residual that is the same for all rows counts too. NaN where an output does not vary.
        """
        known = self._known_rows()
        return share_on_rows(
            self.predictions[known], self.residual[known], variance=self._calibrated_variance()
        )

    def _calibrated_variance(self) -> tuple[float, ...]:
        """Variance of every output over the calibration rows; empty where it is not known."""
        if self.explainer is None or self.scale != "output":
            return ()
        variance = dict(
            zip(self.explainer.output_names, self.explainer.state.variance, strict=False)
        )
        if not set(self.output_names) <= set(variance):
            return ()
        return tuple(variance[name] for name in self.output_names)

    def _known_rows(self) -> BoolArray:
        """Rows whose residual is known: those with a missing value may not have been run."""
        return np.asarray(np.isfinite(self.residual).all(1))

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What is worth knowing of these rows.

        R² clearly below the headline, values outside what was calibrated, combinations far from all
        seen, rows without a prediction, contributions of more than 1 to a probability.
        """
        findings = [
            *self._findings_of_contributions(),
            outside_finding(self.outside, self.feature_names),
            unpredicted_finding(self.predictions),
        ]
        return tuple(finding for finding in findings if finding is not None)

    def _findings_of_contributions(self) -> list[Finding | None]:
        """What is worth knowing of the contributions: of some terms or outputs, nothing is."""
        if self.scale == "probability":
            return [beyond_one_finding(self.values, self.link)]
        if not self._is_of_all_terms():
            return []

        known = self._known_rows()
        worse = compare_with_headline(
            self.predictions[known],
            self.residual[known],
            self.explainer.state,
            self.output_names,
        )
        return [worse, far_finding(self.far)]

    def _is_of_all_terms(self) -> bool:
        """Whether this is the explainer's whole account, on the scale of its outputs."""
        if self.explainer is None or self.scale != "output":
            return False
        n_terms = len(self.explainer.terms) + len(self.explainer.left_out)
        return self.output_names == self.explainer.output_names and len(self.terms) == n_terms

    @cached_property
    def far(self) -> BoolArray:
        """Rows whose combination of numbers is far from all calibration rows, shape (rows,).

        Each of the numbers is in its range.

        `outside` tells of single values, this of their combination. It goes by ranks and
        correlations, so a hole in the midst of the rows is not seen. Categories do not count.
        """
        reach = getattr(self.explainer, "reach", None)
        if reach is None or not len(self):
            return np.zeros(len(self), dtype=bool)
        columns, _ = read_columns(self.explainer, self.data)
        return np.asarray(reach.beyond(columns) & ~self.outside.any(1))

    def __getitem__(self, key: object) -> Explanation:
        """Some rows, terms and outputs: `ex[3]`, `ex[:, "age"]`, `ex[:, :, "yes"]`.

        An interaction is `ex[:, ("age", "income")]`.

        Rows go by position, slice, list of positions or mask; terms and outputs also by name. Terms
        left out are counted in the residual, so the account still adds up.
        """
        row_key, term_key, output_key = split_axes(key)
        if _is_one_term(term_key):
            term_key = [term_key]
        rows = find_positions(row_key, len(self), "rows", self._row)
        terms = find_positions(term_key, len(self.terms), "terms", self._term)
        outputs = find_positions(output_key, len(self.output_names), "outputs", self._output)

        values = self.values[rows][:, terms][:, :, outputs]
        base_values = self.base_values[outputs]
        predictions = self.predictions[rows][:, outputs]
        all_terms = isinstance(term_key, slice) and term_key == slice(None)
        if all_terms:
            residual = self.residual[rows][:, outputs]
        else:
            residual = predictions - base_values - values.sum(1)

        return replace(
            self,
            values=values,
            base_values=base_values,
            residual=residual,
            predictions=predictions,
            terms=tuple(self.terms[position] for position in terms),
            output_names=tuple(self.output_names[position] for position in outputs),
            data=take_rows(self.data, rows),
            outside=self.outside[rows],
            baseline_contributions=self.baseline_contributions[terms][:, outputs],
        )

    def top(self, k: int) -> Explanation:
        """The `k` terms with the largest mean absolute contribution.

        The others are counted in the residual.
        """
        require_whole_number("k", k, least=0)
        strongest = np.argsort(-self._mean_sizes(), kind="stable")[:k]
        return self[:, np.sort(strongest)]

    def _mean_sizes(self) -> FloatArray:
        """Per term its mean absolute contribution, over the rows where it is known."""
        known = np.isfinite(self.values)
        sizes = np.where(known, np.abs(self.values), 0.0).sum((0, 2))
        return np.asarray(sizes / np.maximum(known.sum((0, 2)), 1))

    def order(self, size: int) -> Explanation:
        """Only terms of `size` features: 1 for main effects, 2 for pairs.

        The others are counted in the residual.
        """
        require_whole_number("size", size)
        if not self.terms:
            return self
        return self[:, [len(term) == size for term in self.terms]]

    def __add__(self, other: Explanation) -> Explanation:
        """The account of two models' summed outputs on the same rows.

        A term that one of them lacks contributes nothing there.

        With `-` it is what changed from one model to another, and with `*` a mean: `(a + b) * 0.5`.
        """
        if not isinstance(other, Explanation):
            return NotImplemented
        self._require_alike(other)
        terms = tuple(dict.fromkeys([*self.terms, *other.terms]))
        values = np.zeros((len(self), len(terms), len(self.output_names)))
        at_baseline = np.zeros(values.shape[1:])
        for explanation in (self, other):
            positions = [terms.index(term) for term in explanation.terms]
            values[:, positions] += explanation.values
            at_baseline[positions] += explanation.baseline_contributions

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
            origin=None,
        )

    def _require_alike(self, other: Explanation) -> None:
        """An error where two explanations cannot be added."""
        differing = None
        if self.feature_names != other.feature_names:
            differing = "features"
        elif self.output_names != other.output_names:
            differing = "outputs"
        elif len(self) != len(other):
            differing = "numbers of rows"
        if differing is not None:
            raise ValueError(
                f"the explanations have different {differing}; explain both with the same."
            )

    def __mul__(self, factor: float) -> Explanation:
        """The account of the outputs times a number."""
        if not np.isscalar(factor) or isinstance(factor, str | bytes):
            return NotImplemented
        products = {name: getattr(self, name) * factor for name in _PER_OUTPUT}
        return replace(self, **products, explainer=None, origin=None)

    __rmul__ = __mul__

    def __neg__(self) -> Explanation:
        return self * -1.0

    def __sub__(self, other: Explanation) -> Explanation:
        if not isinstance(other, Explanation):
            return NotImplemented
        return self + -other

    @property
    def plot(self) -> Plots:
        """Plots such as `ex.plot.waterfall(0)` and `ex.plot.beeswarm()`.

        There are also `ex.plot.importance()`, `ex.plot.ledger()` and others.
        """
        return Plots(
            self, ("beeswarm", "importance", "interaction_matrix", "ledger", "waterfall", "windows")
        )

    def to_frame(self, output: int | str | None = None) -> NativeFrame:
        """The account as the caller's kind of frame: base, a column per term, residual, prediction.

        The index of a pandas frame is kept; an array's account is a pandas frame, or else a polars
        one.

        Args:
            output: Which output; may be left out where there is only one.
        """
        chosen = self._chosen(output)
        names = column_names(self.terms)
        # A feature may be called "base" too: the account's own columns give way.
        columns = {free_name("base", names): np.full(len(self), self.base_values[chosen])}
        for position, name in enumerate(names):
            columns[name] = self.values[:, position, chosen]
        columns[free_name("residual", names)] = self.residual[:, chosen]
        columns[free_name("prediction", names)] = self.predictions[:, chosen]
        return frame_like(self.data, columns)

    def to_shap(self, output: int | str | None = None) -> Any:
        """A `shap.Explanation` for shap's plots; needs the shap package.

        A pair is shared equally between its features, as Shapley values would, and the residual is
        a column of its own: nothing is hidden, and the values add up to the prediction.

        Args:
            output: Which output; may be left out where there is only one.
        """
        try:
            import shap
        except ImportError as missing:
            raise ImportError("to_shap needs the shap package: pip install shap.") from missing
        chosen = self._chosen(output)
        equal_shares = [1 / len(term) for term in self.terms]
        values = self._per_feature(equal_shares)[:, :, chosen]
        rows = _data_matrix(self.data, len(self), self.feature_names)
        of_residual = np.full(len(self), np.nan)

        return shap.Explanation(
            values=np.column_stack([values, self.residual[:, chosen]]),
            base_values=np.full(len(self), self.base_values[chosen]),
            data=np.column_stack([rows, of_residual]),
            feature_names=[*self.feature_names, "(residual)"],
            output_names=self.output_names[chosen],
        )

    def __repr__(self) -> str:
        parts = [
            count(len(self), "row"),
            count(len(self.terms), "term"),
            count(len(self.output_names), "output"),
        ]
        if len(self) > 1:
            parts.append(f"R² {_shares(self.explained())}")

        names = ", ".join(name for name, _ in self._strongest(_PRINTED_TERMS))
        strongest = f"; strongest: {names}" if names else ""
        lines = [f"Explanation({', '.join(parts)}{strongest})", *self._finding_lines()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        outputs = ", ".join(self.output_names[:_SHOWN_OUTPUTS])
        n_more = len(self.output_names) - _SHOWN_OUTPUTS
        if n_more > 0:
            outputs += f" and {n_more} more"
        title = f"{count(len(self), 'row')}, {outputs}"
        if len(self) == 1 and len(self.output_names) == 1:
            return notebook.card(title, self._account_of_a_row(), notebook.findings(self.findings))

        explained = self.explained() if len(self) > 1 else np.full(1, np.nan)
        known = explained[np.isfinite(explained)]
        worst = float(known.min()) if len(known) else math.nan
        return notebook.card(
            title,
            notebook.share_bar(worst, f"R² {_shares(explained)} on these rows")
            if len(known)
            else "",
            notebook.bars(self._mean_bars(), heading="mean size of contributions"),
            notebook.findings(self.findings),
        )

    def _mean_bars(self) -> list[notebook.Bar]:
        """The strongest terms and the residual by their mean sizes."""
        lines = [
            notebook.Bar(name, size, colour=notebook.NEUTRAL)
            for name, size in self._strongest(_SHOWN_TERMS)
        ]
        known_residuals = np.abs(self.residual[np.isfinite(self.residual)])
        residual_size = float(known_residuals.mean()) if len(known_residuals) else math.nan
        return [*lines, notebook.Bar("residual", residual_size, colour=notebook.NEUTRAL)]

    def _account_of_a_row(self) -> str:
        """The account of one row: its strongest terms, the sum of the others, the residual."""
        contributions = self.values[0, :, 0]
        order = np.argsort(-np.abs(np.nan_to_num(contributions)), kind="stable")
        shown, others = order[:_SHOWN_TERMS], order[_SHOWN_TERMS:]
        lines = [
            notebook.Bar(term_name(self.terms[term]), float(contributions[term])) for term in shown
        ]
        if len(others):
            lines.append(notebook.Bar(f"{len(others)} others", float(contributions[others].sum())))
        lines.append(notebook.Bar("residual", float(self.residual[0, 0])))

        base = notebook.write_number(float(self.base_values[0]))
        prediction = notebook.write_number(float(self.predictions[0, 0]))
        return notebook.bars(lines, heading=f"from {base} (base) to {prediction} (prediction)")

    def _finding_lines(self) -> list[str]:
        """One line per finding; none where there is nothing to say."""
        return describe_findings(self.findings) if self.findings else []

    def _strongest(self, most: int) -> list[tuple[str, float]]:
        """Names and mean absolute contributions of the strongest terms."""
        if len(self) == 0:
            return []
        sizes = self._mean_sizes()
        order = np.argsort(-sizes, kind="stable")[:most]
        return [(term_name(self.terms[term]), float(sizes[term])) for term in order]

    def _row(self, row: object) -> int:
        return row_position(row, len(self))

    def _term(self, term: object) -> int:
        return term_position(term, self.terms)

    def _output(self, output: int | str) -> int:
        return output_position(output, self.output_names)

    def _chosen(self, output: int | str | None) -> int:
        """Position of an output, which must be named where there are several."""
        if output is not None:
            return self._output(output)
        if len(self.output_names) > 1:
            names = ", ".join(repr(name) for name in self.output_names)
            raise ValueError(
                f"output must be chosen among {names}, as in output={self.output_names[0]!r}."
            )
        return self._output(0)


def beyond_one_finding(values: FloatArray, link: str) -> Finding | None:
    """A finding where contributions to probabilities are larger than any probability.

    None where there are no such contributions, or no probabilities.
    """
    known = np.abs(values[np.isfinite(values)])
    if link == "exp" or not (known > 1.0).any():
        return None
    n_rows = int((np.abs(np.nan_to_num(values)) > 1.0).any((1, 2)).sum())
    message = (
        f"Contributions to a probability are larger than 1 in {count(n_rows, 'row')} of "
        f"{len(values):,}, the largest {known.max():.2f}: terms that pull in opposite directions "
        "cancel, and only their sum with the base and the residual is a probability. Logits "
        "(without to_probability) are easier to read there."
    )
    return Finding("note", "beyond_one", "", message)


def _is_one_term(key: object) -> bool:
    """Whether a tuple names the features of one term, and not several terms."""
    return isinstance(key, tuple) and bool(key) and all(isinstance(name, str) for name in key)


def _data_matrix(data: TableLike, n_rows: int, features: Sequence[str]) -> AnyArray:
    """The explained rows, one column per feature; NaN for one that is no single column of them."""
    frame = frame_of(data)
    if frame is None:
        shape = (n_rows, len(features))
        return np.asarray(data) if np.shape(data) == shape else np.full(shape, np.nan)

    # By name where names are features: the caller's columns may come in any order.
    positions = {str(name): position for position, name in enumerate(frame.columns)}
    if len(positions) == len(features) and not set(features) & set(positions):
        positions = {feature: position for position, feature in enumerate(features)}

    columns = []
    for feature in features:
        if feature in positions:
            columns.append(frame[:, positions[feature]].to_numpy())
        else:
            columns.append(np.full(n_rows, np.nan))
    return np.column_stack(columns)


def _shares(shares: FloatArray) -> str:
    """Shares of several outputs, from the smallest to the largest."""
    known = shares[np.isfinite(shares)]
    if known.size == 0:
        return "–"
    low = f"{known.min():.3f}".replace("-", "−")
    high = f"{known.max():.3f}".replace("-", "−")
    return low if low == high else f"{low} to {high}"


# Nodes of the rule that carries an account over; what more would mend is in the residual.
_MOST_NODES = 256
# With so many digits' worth of nodes, exp(−2·18) = 2e-16, the rule is exact to rounding.
_EXACT = 18.0


def apply_link(outputs: FloatArray, link: str) -> FloatArray:
    """Probabilities, or means where the link is exp, of outputs (rows, outputs)."""
    if link == "sigmoid":
        # Overflows nowhere.
        return np.asarray(0.5 * (1.0 + np.tanh(0.5 * outputs)))
    if link == "exp":
        return np.asarray(np.exp(outputs))

    shifted = np.exp(outputs - outputs.max(1, keepdims=True))
    return np.asarray(shifted / shifted.sum(1, keepdims=True))


def carry_over(values: FloatArray, start: FloatArray, stop: FloatArray, link: str) -> FloatArray:
    """Contributions times the link's mean Jacobian on the line from `start` to `stop`.

    By Gauss and Legendre's rule. For a softmax Σ_k ∂p_c/∂y_k g_k = p_c (g_c − Σ_k p_k g_k).
    """
    change = stop - start
    nodes, weights = gauss_legendre(_count_nodes(change, link))

    carried = np.zeros_like(values)
    for node, weight in zip(nodes, weights, strict=True):
        probabilities = apply_link(start + node * change, link)[:, None]
        if link == "softmax":
            slopes = values - (values * probabilities).sum(2, keepdims=True)
        elif link == "exp":
            slopes = values
        else:
            slopes = values * (1.0 - probabilities)
        carried += weight * probabilities * slopes
    return carried


def _count_nodes(change: FloatArray, link: str) -> int:
    """Nodes that make the rule exact to rounding, as far as there are enough.

    Sigmoid and softmax are analytic up to a distance of π over the change: the error with n nodes
    is exp(−2 n asinh(2π / change)).
    """
    finite = change[np.isfinite(change).all(1)]
    largest = 1.0
    if finite.size:
        sizes = np.ptp(finite, axis=1) if link == "softmax" else np.abs(finite)
        largest = max(float(sizes.max()), 1.0)

    nodes = math.ceil(_EXACT / math.asinh(2 * math.pi / largest))
    return min(_MOST_NODES, nodes)
