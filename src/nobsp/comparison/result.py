"""What a comparison found: parts that add up, with intervals.

It also tells where on a feature's range they arise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from nobsp import notebook
from nobsp._typing import AnyArray, FloatArray, NativeFrame
from nobsp.arguments import array_of, count, quote, require_number, require_whole_number, suggest
from nobsp.base import Plots
from nobsp.comparison.pairing import Kind, Side
from nobsp.comparison.ranges import feature_values, function_of, gap_along
from nobsp.deprecation import warn_renamed
from nobsp.findings import Finding, describe_findings
from nobsp.frames import as_table
from nobsp.tabular.indexing import Term, output_position

# What is smaller than this share of the numbers beside it is printed as 0.
_ROUNDING = 1e-12
# Mean predictions that differ by a smaller share of the largest prediction are the same.
_SAME = 1e-6
# Parts that are named when a comparison is printed.
_PRINTED_PARTS = 5
# Parts that a notebook shows.
_SHOWN_PARTS = 8
# False discovery rate below which a term counts as changed, where nobody says otherwise.
USUAL_RATE = 0.1


# What outputs before a link are called.
_UNITS = {"sigmoid": " in log-odds", "softmax": " in logits", "exp": " in logarithms"}


@dataclass(frozen=True, eq=False)
class Estimates:
    """Numbers with their intervals.

    Attributes:
        value: The numbers themselves.
        lower: Lower ends of the intervals.
        upper: Upper ends.
    """

    value: FloatArray
    lower: FloatArray
    upper: FloatArray

    @classmethod
    def of(
        cls, value: FloatArray, drawn: FloatArray, confidence: float, *, freedom: FloatArray
    ) -> Self:
        """Intervals that hold a share `confidence` of the draws, (draws, …), wider for few rows.

        A scatter that is known with few degrees of freedom makes Student's intervals, not normal
        ones: ends are taken so much further from the value as Student's quantile is than the normal
        one (the expanded percentile interval of Hesterberg, 2015).
        """
        from scipy.stats import norm, t

        lower, upper = np.quantile(drawn, [0.5 - confidence / 2, 0.5 + confidence / 2], axis=0)
        stretch = t.ppf(0.5 + confidence / 2, freedom) / norm.ppf(0.5 + confidence / 2)
        return cls(
            value=value,
            lower=value + stretch * (lower - value),
            upper=value + stretch * (upper - value),
        )

    def take(self, which: Any) -> Estimates:
        """Some of the numbers."""
        return Estimates(self.value[which], self.lower[which], self.upper[which])


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """What differs between two accounts, as `nobsp.compare` finds it.

    The parts add up: `gap.value.sum(0) == total.value` to rounding.

    Attributes:
        kind: "rows" for one explainer on two tables, "functions" for two explainers on one, "both"
            for two and two.
        names: What the two are called; gaps are those of the first less those of the second.
        terms: The terms of both.
        entries: What the parts are called, one per row of `to_frame`: "base" where two explainers
            have one each, every term, "residual".
        feature_names: Names of all features.
        output_names: Names of the outputs.
        scale: What the accounts are of, "output" or "probability".
        confidence: Share of intervals that hold what they are about.
        n_rows: How many rows each account has.
        mean_predictions: The two mean predictions, shape (2, outputs).
        total: The gap of the mean predictions, shape (outputs,).
        gap: Every entry's part of it, shape (entries, outputs).
        parts: For two explainers on two tables the three parts of every entry, "rows", "functions"
            and "both", which add up to its gap; NaN for the residual where models were not run on
            each other's rows.
        change: For two explainers on one table, how far each entry's two functions lie apart: the
            standard deviation of their difference over the rows.
        p_value: Probability of so large a gap without any; for two explainers on one table, of
            functions so far apart where both are calibrations of one model (of lists: where all are
            trainings of one). NaN for what is no term, for terms that only one of the two has, and
            where what calibrating does is not known, as of files.
        q_value: The same as false discovery rates among the terms (Benjamini and Hochberg).
        explained: For two explainers on one table, the R² of what the terms tell of the difference
            between the two models' predictions.
        findings: What is worth knowing before the numbers are believed.
        sides: The two accounts.

    Example:
        >>> import numpy as np, nobsp
        >>> X = np.random.default_rng(0).normal(size=(400, 2))
        >>> explainer = nobsp.NObSP(
        ...     lambda X: 2 * X[:, 0] + X[:, 1], features=["age", "size"]
        ... ).fit(X)
        >>> comparison = nobsp.compare(
        ...     explainer(X[:200] + [1, 0]), explainer(X[:200]), names=("new", "old")
        ... )
        >>> comparison.entries, abs(comparison.gap.value[:, 0]).round(6).tolist()
        (('age', 'size', 'residual'), [2.0, 0.0, 0.0])
    """

    kind: Kind
    names: tuple[str, str]
    terms: tuple[Term, ...]
    entries: tuple[str, ...]
    feature_names: tuple[str, ...]
    output_names: tuple[str, ...]
    scale: str
    confidence: float
    n_rows: tuple[int, int]
    mean_predictions: FloatArray
    total: Estimates
    gap: Estimates
    parts: Mapping[str, Estimates]
    change: Estimates | None
    p_value: FloatArray
    q_value: FloatArray
    explained: FloatArray | None
    findings: tuple[Finding, ...]
    sides: tuple[Side, Side] = field(repr=False)

    @property
    def level(self) -> float:
        """Former name of `confidence`."""
        warn_renamed("Comparison.level", "Comparison.confidence")
        return self.confidence

    def to_frame(self, output: int | str | None = None) -> NativeFrame:
        """One row per entry, in the order of `entries`, for each output where there are several.

        Args:
            output: Which output; all of them when None.

        Returns:
            Columns term, output, gap, lower, upper; for two explainers on one table change,
            change_lower and change_upper; for two on two tables rows, functions and both with their
            lower and upper ends; p_value and q_value. The column gap adds up to the gap of the mean
            predictions, output by output.
        """
        outputs = range(len(self.output_names)) if output is None else [self.find_output(output)]
        columns: dict[str, list[object]] = {"term": [], "output": []}
        for position in outputs:
            columns["term"] += self.entries
            columns["output"] += [self.output_names[position]] * len(self.entries)
            self._append(columns, "gap", self.gap, position, ends=("lower", "upper"))
            for part, estimates in self.parts.items():
                self._append(
                    columns, part, estimates, position, ends=(f"{part}_lower", f"{part}_upper")
                )
            if self.change is not None:
                self._append(
                    columns, "change", self.change, position, ends=("change_lower", "change_upper")
                )
            columns.setdefault("p_value", []).extend(self.p_value[:, position])
            columns.setdefault("q_value", []).extend(self.q_value[:, position])
        return as_table({name: _column(values) for name, values in columns.items()})

    @staticmethod
    def _append(
        columns: dict[str, list[object]],
        name: str,
        estimates: Estimates,
        position: int,
        *,
        ends: tuple[str, str],
    ) -> None:
        """Adds three columns, of one output."""
        columns.setdefault(name, []).extend(estimates.value[:, position])
        columns.setdefault(ends[0], []).extend(estimates.lower[:, position])
        columns.setdefault(ends[1], []).extend(estimates.upper[:, position])

    def along(
        self, feature: str, *, output: int | str | None = None, bins: int = 10
    ) -> NativeFrame:
        """Where on its range a feature's own part of the gap arises.

        The rows are put into bins by the feature's value, the same for both. A bin's part is what
        its rows contribute to the mean over the first account, less the same for the second;
        contributions are measured from the middle between the two means, so that a bin which both
        fill alike, with the same function, has none. The parts add up to the feature's.

        Args:
            feature: Its name.
            output: Which output; may be left out where there is only one.
            bins: Most bins of a number; a category has one per level, missing values have their
                own.

        Returns:
            Columns from, to (numbers), level (names), share_a and share_b of the rows, function_a
            and function_b (the mean contribution there), part.
        """
        require_whole_number("bins", bins)
        self._require_feature(feature)
        return as_table(gap_along(self.sides, feature, self.find_output(output), int(bins)))

    def feature_values(self, feature: str) -> tuple[AnyArray, AnyArray]:
        """A feature's values in the rows of both accounts."""
        self._require_feature(feature)
        first, second = (feature_values(side, feature) for side in self.sides)
        return first, second

    def curve(
        self, feature: str, x: AnyArray, *, side: int, output: int | str | None = None
    ) -> FloatArray:
        """A feature's own function at some numbers; of several trainings their mean.

        Args:
            feature: Its name.
            x: Numbers.
            side: 0 for the first account, 1 for the second.
            output: Which output; may be left out where there is only one.

        Returns:
            What the feature contributes there; zero where a model has no function of it.
        """
        self._require_feature(feature)
        require_whole_number("side", side, least=0)
        if side > 1:
            raise ValueError(f"side must be 0 or 1, found {quote(side)}.")
        values = array_of(x, name="x")
        if values.ndim != 1:
            raise ValueError(f"x must be a list of values, found shape {values.shape}.")

        position = self.find_output(output)
        curves = [
            function_of(account, feature, position, values)
            for account in self.sides[side].trainings
        ]
        return np.asarray(np.mean(curves, axis=0))

    def _require_feature(self, feature: object) -> None:
        """An error for the name of a feature that neither side has."""
        if not isinstance(feature, str) or feature not in self.feature_names:
            raise ValueError(
                f"there is no feature {quote(feature)}; {suggest(feature, self.feature_names)}"
            )

    def changed(
        self, rate: float = USUAL_RATE, *, output: int | str | None = None
    ) -> tuple[str, ...]:
        """Terms that changed, the strongest evidence first.

        At most a share `rate` of them is expected to be named by chance.
        """
        require_number("rate", rate, above=0, most=1)
        rates = self.q_value[:, self.find_output(output)]
        order = np.argsort(np.where(np.isfinite(rates), rates, np.inf), kind="stable")
        return tuple(self.entries[entry] for entry in order if rates[entry] <= rate)

    @property
    def n_trainings(self) -> tuple[int, int]:
        """How many trainings of each model were compared.

        One each where accounts were not given as lists.
        """
        first, second = (len(side.trainings) for side in self.sides)
        return first, second

    @property
    def plot(self) -> Plots:
        """Its plots, such as `comparison.plot.gaps()`.

        The others are `comparison.plot.along("age")` and `comparison.plot.two_curves("age")`.
        """
        return Plots(self, ("along", "gaps", "two_curves"))

    @property
    def headline(self) -> str:
        """What there is to say in one sentence; of the first output where there are several."""
        if self.kind == "functions":
            return self._functions_headline()
        first, second = self.mean_predictions[:, 0]
        total = self.total
        size = max(abs(first), abs(second))
        interval = f"[{_signed(total.lower[0])}, {_signed(total.upper[0])}]"
        unexplained = _signed(self.gap.value[-1, 0], size=size)
        return (
            f"{self.names[0]} {_plain(first)}, {self.names[1]} {_plain(second)}: a gap of "
            f"{_signed(total.value[0])} {interval}{self._unit()}, of which the functions leave "
            f"{unexplained} unexplained"
        )

    def _unit(self) -> str:
        """What the numbers are, where a reader may take them for probabilities or counts."""
        if self.scale != "output":
            return ""
        link = getattr(self.sides[0].explanation.origin, "link", "identity")
        return _UNITS.get(link, "")

    def _functions_headline(self) -> str:
        """How much of the difference of two models' predictions terms tell, then what changed."""
        assert self.explained is not None
        share = float(self.explained[0])
        if np.isnan(share):
            same = "the two models predict the same"
            constant = float(self.total.value[0])
            largest = float(np.abs(self.sides[0].explanation.predictions[:, 0]).max())
            if abs(constant) <= _SAME * largest:
                return same
            return f"{same}, but for a constant of {_signed(constant)}"
        told = (
            f"terms explain {max(share, 0.0):.2f} of how the two models' predictions differ from "
            "row to row"
        )
        if np.isnan(self.q_value[:, 0]).all():
            return (
                f"{told}; whether functions changed is not tested, as what calibrating does to "
                "them is not known"
            )
        names = self.changed(output=0)
        again = "calibrating" if self.n_trainings == (1, 1) else "training"
        if not names:
            return f"{told}; no function changed by more than {again} again makes"
        listed = ", ".join(names[:_PRINTED_PARTS])
        if len(names) > _PRINTED_PARTS:
            listed += f" and {len(names) - _PRINTED_PARTS} more"
        if self.n_trainings != (1, 1):
            return f"{told}; changed by more than {again} again makes: {listed}"

        return (
            f"{told}; functions of these two models lie further apart than calibrating again "
            f"makes: {listed}; how far training again would move them, one training of each cannot "
            "tell"
        )

    def __repr__(self) -> str:
        rows = f"{self.n_rows[0]:,} and {self.n_rows[1]:,}"
        models = "two explainers"
        if self.n_trainings != (1, 1):
            models = f"{self.n_trainings[0]} and {self.n_trainings[1]} trainings"
        what = {
            "rows": f"one explainer, {rows} rows",
            "functions": f"{models}, the same {count(self.n_rows[0], 'row')}",
            "both": f"two explainers, {rows} rows",
        }[self.kind]
        lines = [f"Comparison({self.names[0]} − {self.names[1]}; {what})", f"{self.headline}."]
        for position, output in enumerate(self.output_names[:_PRINTED_PARTS]):
            before = f"{output}: " if len(self.output_names) > 1 else ""
            lines.append(before + "; ".join(self._strongest(position)))
        lines += describe_findings(self.findings) if self.findings else []
        return "\n".join(lines)

    def _strongest(self, output: int) -> list[str]:
        """The largest parts in words."""
        measured = self.change if self.change is not None else self.gap
        # A spread has no sign.
        text = _signed if self.change is None else _plain
        sizes = np.abs(measured.value[:, output])
        order = np.argsort(-sizes, kind="stable")[:_PRINTED_PARTS]
        largest = float(sizes.max(initial=0.0))
        return [
            f"{self.entries[entry]} {text(measured.value[entry, output], size=largest)} "
            f"[{text(measured.lower[entry, output])}, {text(measured.upper[entry, output])}]"
            for entry in order
        ]

    def _repr_html_(self) -> str:
        measured = self.change if self.change is not None else self.gap
        tables = []
        for position, output in enumerate(self.output_names[:_PRINTED_PARTS]):
            values = measured.value[:, position]
            text = _signed if self.change is None else _plain
            order = np.argsort(-np.abs(values), kind="stable")[:_SHOWN_PARTS]
            lines = [
                notebook.Bar(
                    self.entries[entry],
                    float(values[entry]),
                    f"[{text(measured.lower[entry, position])}, "
                    f"{text(measured.upper[entry, position])}]",
                )
                for entry in order
            ]
            tables.append(notebook.bars(lines, heading=output))

        return notebook.card(
            f"{self.names[0]} − {self.names[1]}",
            notebook.line(f"{self.headline}."),
            *tables,
            notebook.findings(self.findings),
        )

    def find_output(self, output: int | str | None) -> int:
        """Position of an output, which must be named where there are several."""
        if output is not None:
            return output_position(output, self.output_names)
        if len(self.output_names) > 1:
            names = ", ".join(repr(name) for name in self.output_names)
            raise ValueError(
                f"output must be chosen among {names}, as in output={self.output_names[0]!r}."
            )
        return 0


def _column(values: list[object]) -> AnyArray:
    """Texts as objects, numbers as numbers."""
    are_texts = bool(values) and isinstance(values[0], str)
    return np.array(values, dtype=object if are_texts else np.float64)


def _plain(number: float, *, size: float = 0.0) -> str:
    """A number as people write it; 0 where it is rounding beside numbers of a size."""
    if abs(number) <= _ROUNDING * size:
        return "0"
    return f"{number:.4g}".replace("-", "−")


def _signed(number: float, *, size: float = 0.0) -> str:
    """A number with its sign, as people write it; 0 where it is mere rounding.

    What is rounding is judged beside numbers of the given `size`.
    """
    if abs(number) <= _ROUNDING * size:
        return "0"
    return f"{number:+.3g}".replace("-", "−")
