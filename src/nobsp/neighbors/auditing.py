"""Audits of predictions and labels by their neighbours.

They find likely errors, mislabels, boundary cases and outliers.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from nobsp import notebook
from nobsp._typing import AnyArray, ArrayLike, NativeFrame, TableLike
from nobsp.arguments import require_number, require_whole_number
from nobsp.elsewhere import AUDIT, NamesFromElsewhere
from nobsp.frames import frame_like
from nobsp.neighbors import confidence
from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.index import ContributionIndex, most_left_out
from nobsp.neighbors.reasons import give_reasons
from nobsp.neighbors.result import Neighbors
from nobsp.neighbors.tuning import TUNING
from nobsp.neighbors.typicality import (
    N_NEAREST_BY_EVIDENCE,
    Reference,
    neighbour_distances,
    reference_positions,
    trust_classes,
    trust_values,
)
from nobsp.network.guest import keeps_torch_modes

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Activation purity of a boundary case, as in the paper.
BOUNDARY = (0.4, 0.7)
# Probability to be wrong of a label that is suspected, at least.
_LEAST_DOUBT = 0.25

# Rows from which on it tells something that every label was predicted.
_FEWEST_TELLING = 50
# Rows with their reasons that a notebook shows.
_SHOWN_ROWS = 5


@dataclass(frozen=True, eq=False, repr=False)
class Audit(NamesFromElsewhere):
    """What an audit found, row by row.

    Attributes:
        rows: Positions of the audited rows: in `X`, or in the database where that itself was
            audited.
        predicted: The predicted class; of a regression the value.
        labels: The labels given; None without.
        confidence: Softmax probability of the predicted class; NaN for a regression.
        joint: Joint confidence that the prediction is right, from 0 to 1.
        joint_kind: "cross-validated" where it was fitted to the labels given; "given" where it was
            fitted before; "fixed" for the rule without labels.
        typicality: Share of the database's own rows that are further from their neighbours, in both
            spaces together; below 1/1000 where hardly any is. Inputs from elsewhere have next to
            none.
        errors: Whether the joint confidence is below one half.
        boundary: Whether the activation purity is that of a boundary case.
        outliers: Whether the typicality is below the quantile chosen.
        mislabels: Whether the label is suspected to be wrong; None without labels.
        label_score: Probability that the label is right, by neighbours, class centroids and
            cross-fitted heads that did not see it: the less, the more suspicious; None without
            labels.
        suggested: The class that they make most probable, or the value that they expect.
        reasons: In words, why a row was flagged; empty for others.
        signals: What the joint confidence is made of, by name.
        joint_model: The fitted logistic regression, for `audit(..., joint=)` of other rows; None
            for the fixed rule.
        auroc: How well each signal tells right from wrong predictions, without rows whose label is
            suspected; empty below 20 errors.
        by_contributions: The neighbours by evidence.
        by_activations: The neighbours by activations.
        outputs: Where rows may have several classes: the class that a line is about. There is a
            line for each row and class; labels, predicted and suggested say whether the row is of
            it. None otherwise.
        expected_error: How far the prediction of a regression is off, on average; None for classes.
        whole: The audit that these rows were taken from, `audit[rows]`; None for one of all rows.
    """

    rows: NDArray[np.int64]
    predicted: AnyArray
    labels: AnyArray | None
    confidence: Array
    joint: Array
    joint_kind: Literal["cross-validated", "given", "fixed"]
    typicality: Array
    errors: Flags
    boundary: Flags
    outliers: Flags
    mislabels: Flags | None
    label_score: Array | None
    suggested: AnyArray
    signals: dict[str, Array]
    joint_model: Any
    auroc: dict[str, float]
    by_contributions: Neighbors
    by_activations: Neighbors
    reasons: tuple[str, ...] = ()
    outputs: AnyArray | None = None
    expected_error: Array | None = None
    whole: Audit | None = None
    _elsewhere = AUDIT

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, rows: Any) -> Audit:
        """Some of the rows, by position, slice, list of positions or mask.

        What was found about all of them stays.
        """
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        parts: dict[str, Any] = {"reasons": tuple(self.reasons[row] for row in chosen)}
        parts["signals"] = {name: values[chosen] for name, values in self.signals.items()}
        for field in fields(self):
            values = getattr(self, field.name)
            if isinstance(values, np.ndarray | Neighbors):
                parts[field.name] = values[chosen]
        parts["whole"] = self if self.whole is None else self.whole
        return replace(self, **parts)

    @property
    def ranking(self) -> NDArray[np.int64]:
        """Positions of all rows, the most suspicious first.

        Suspected labels come first, the least probable before others; then likely errors, outliers
        and boundary cases, and rows without a finding, each by their joint confidence.
        """
        no_rows = np.zeros(len(self), dtype=bool)
        suspected = no_rows if self.mislabels is None else self.mislabels
        unflagged = np.array([not reason for reason in self.reasons], dtype=bool)

        # A wrong label is often predicted with confidence, so the joint confidence says nothing
        # about it.
        doubt = self.joint
        if self.label_score is not None:
            doubt = np.where(suspected, self.label_score, self.joint)

        not_an_error = ~self.errors & ~suspected
        keys = (doubt, not_an_error, unflagged, ~suspected)
        order: NDArray[np.int64] = np.lexsort(keys).astype(np.int64)
        return order

    @property
    def flagged(self) -> NDArray[np.int64]:
        """Positions of rows with a reason, the most suspicious first, in the order of `ranking`."""
        ranking = self.ranking
        has_reason = np.array([bool(reason) for reason in self.reasons], dtype=bool)
        flagged: NDArray[np.int64] = ranking[has_reason[ranking]]
        return flagged

    @property
    def expected_errors(self) -> dict[Any, float]:
        """How many labels of each class are expected to be wrong; empty without labels.

        For a regression there is one number, for all labels.
        """
        if self.labels is None or self.label_score is None:
            return {}
        if self.expected_error is not None:
            return {"all": float((1 - self.label_score).sum())}
        about = self.labels if self.outputs is None else self.outputs
        return {
            label.item(): float((1 - self.label_score)[about == label].sum())
            for label in np.unique(about)
        }

    @property
    def agreement(self) -> float | None:
        """Share of rows whose label the model predicts; None without labels or for a regression."""
        if self.labels is None or self.expected_error is not None:
            return None
        return float((self.predicted == self.labels).mean())

    def _note(self) -> str:
        """What to know where the model predicts every label; empty otherwise."""
        if self.agreement != 1.0 or len(self) < _FEWEST_TELLING:
            return ""
        return (
            "note: the model predicts every label. If it was trained on these labels, it has "
            "learnt the wrong ones, too, and they cannot be found: audit with a model that was "
            "trained on other rows, for example one fold of a cross-validation at a time."
        )

    def to_frame(self) -> NativeFrame:
        """One line per row, the most suspicious first, in pandas, or in polars if that is missing.

        `row` has the positions, and a pandas frame has them as its index, so that
        `frame.sort_index()` restores the order of the rows and a join finds the right ones. `label`
        is the label that was given, `predicted` what the model says, and `suggested` what the label
        should probably be (cleanlab's `given_label` and `predicted_label` are `label` and
        `suggested`); `is_label_issue` and `label_score` are called as in cleanlab. Where rows may
        have several classes, there is a line for each row and class, and `output` names the class.
        Purities are shares of neighbours whose label is the predicted class; NaN for a regression.
        """
        none = np.full(len(self), np.nan)
        purity = [
            none if hits.classes is None else hits.purity
            for hits in (self.by_contributions, self.by_activations)
        ]
        columns = {
            "row": self.rows,
            "output": self.outputs,
            "label": self.labels,
            "predicted": self.predicted,
            "suggested": self.suggested,
            "is_label_issue": self.mislabels,
            "label_score": self.label_score,
            "confidence": self.confidence,
            "purity_contributions": purity[0],
            "purity_activations": purity[1],
            "joint": self.joint,
            "typicality": self.typicality,
            "expected_error": self.expected_error,
            "error": self.errors,
            "boundary": self.boundary,
            "outlier": self.outliers,
            "reason": np.array(self.reasons, dtype=object),
        }
        ranking = self.ranking
        ranked: dict[str, Any] = {}
        for name, values in columns.items():
            if values is None:
                continue
            in_order = values[ranking]
            ranked[name] = list(in_order) if in_order.dtype == object else in_order

        frame = frame_like(None, ranked)
        if hasattr(frame, "set_axis"):  # only pandas has an index
            return frame.set_axis(ranking, axis=0)
        return frame

    def issue_manager(self) -> Any:
        """The suspected labels as an issue manager, a class to register with cleanlab's Datalab.

        Its issues are called "nobsp_label"; `lab.get_issues("nobsp_label")` has
        `is_nobsp_label_issue` and `nobsp_label_score`, `lab.get_info("nobsp_label")` has
        `given_label` and `predicted_label`.

        Example:
            >>> from cleanlab.datalab.internal import issue_manager_factory  # doctest: +SKIP
            >>> manager = found.issue_manager()  # doctest: +SKIP
            >>> _ = issue_manager_factory.register(manager)  # doctest: +SKIP
            >>> lab.find_issues(issue_types={"nobsp_label": {}})  # doctest: +SKIP
        """
        if self.mislabels is None or self.label_score is None:
            raise ValueError("an audit without labels has no label issues; pass labels to audit.")
        try:
            import pandas as pd
            from cleanlab.datalab.internal.issue_manager import IssueManager  # type: ignore[import-untyped]
        except ImportError as missing:
            raise ImportError(
                "an issue manager needs cleanlab and pandas: pip install cleanlab."
            ) from missing
        flags = self.mislabels
        scores = self.label_score
        about = {"given_label": self.labels, "predicted_label": self.suggested}

        class LabelIssues(IssueManager):  # type: ignore[misc]  # cleanlab has no types
            """Labels that neighbours, class centroids and cross-fitted heads speak against."""

            description = "Labels that are probably wrong, by rows with similar evidence."
            issue_name = "nobsp_label"

            def find_issues(self, **_: Any) -> None:
                count = len(self.datalab.data)
                if count != len(flags):
                    raise ValueError(
                        f"the audit is of {len(flags)} rows but the Datalab has {count}; audit the "
                        "same."
                    )
                self.issues = pd.DataFrame(
                    {"is_nobsp_label_issue": flags, self.issue_score_key: scores}
                )
                self.summary = self.make_summary(score=float(scores.mean()))
                self.info = {**about, "num_issues": int(flags.sum())}

        return LabelIssues

    def __str__(self) -> str:
        hits = (self.by_contributions, self.by_activations)
        error = self.expected_error
        if error is None:
            purity = [neighbors.purity.mean() for neighbors in hits]
            about = (
                f"mean confidence {self.confidence.mean():.3f}, mean purity {purity[0]:.3f} by "
                "evidence, "
            )
            about += f"{purity[1]:.3f} by activations"
        else:
            about = f"median expected error {np.median(error):.4g}"

        lines = [f"{len(self)} predictions audited: {about}"]
        lines.append(
            f"  likely errors (joint confidence below 0.5, {self.joint_kind}): {self.errors.sum()}"
        )
        if error is None:
            lines.append(
                f"  boundary cases (activation purity {BOUNDARY[0]} to {BOUNDARY[1]}): "
                f"{self.boundary.sum()}"
            )

        lines.append(f"  outliers (unlike the database): {self.outliers.sum()}")
        if self.mislabels is not None:
            expected = sum(self.expected_errors.values())
            lines.append(
                f"  suspected mislabels: {self.mislabels.sum()}; {expected:.0f} wrong labels "
                "expected in all"
            )

        if self.auroc:
            scores = ", ".join(f"{name} {score:.3f}" for name, score in self.auroc.items())
            lines.append(f"  telling right from wrong predictions, AUROC: {scores}")

        lines += [f"  row {self.rows[i]}: {self.reasons[i]}" for i in self.flagged[:5]]
        if note := self._note():
            lines.append(note)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        lines = [
            notebook.Bar(name, float(flags.sum()), colour=notebook.NEUTRAL)
            for name, flags in self._counts().items()
        ]
        reasons = "".join(
            notebook.line(f"row {self.rows[row]}: {self.reasons[row]}")
            for row in self.flagged[:_SHOWN_ROWS]
        )
        return notebook.card(
            f"{len(self):,} predictions audited",
            notebook.bars(lines, heading="flagged"),
            notebook.line("the most suspicious first:") if reasons else "",
            reasons,
            notebook.line(self._note()) if self._note() else "",
        )

    def _counts(self) -> dict[str, Flags]:
        """What was flagged, by what it is."""
        counts = {
            "likely errors": self.errors,
            "boundary cases": self.boundary,
            "outliers": self.outliers,
        }
        if self.mislabels is not None:
            counts["suspected mislabels"] = self.mislabels
        return counts

    def __repr__(self) -> str:
        counts = ", ".join(f"{flags.sum()} {name}" for name, flags in self._counts().items())
        return f"Audit({len(self)} rows: {counts})"


@keeps_torch_modes
def audit(
    index: ContributionIndex,
    X: TableLike = None,
    labels: ArrayLike = None,
    *,
    k: int = 8,
    exclude: ArrayLike = None,
    joint: Any = None,
    budget: int | None = None,
    precision: float = 0.8,
    outliers: float = 0.01,
    progress: bool = False,
) -> Audit:
    """Looks at predictions through neighbours in both spaces, with one forward pass over the rows.

    - *Likely errors*: the joint confidence is below one half. It combines the softmax with a vote
      of the 50 nearest rows by activations, and with how near the neighbours by evidence are. With
      labels it is a logistic regression, each row judged by one that was fitted without it; with
      neither these nor `joint`, the softmax times a power of the vote. Rows unlike any in the
      database are trusted less, whatever the model says.
    - *Boundary cases*: activation purity from 0.4 to 0.7.
    - *Outliers*: rows of little typicality: further from their neighbours than rows of the database
      are from theirs.
    - *Suspected mislabels*: as many of the least probable labels as can be suspected with the
      precision asked for.

    The joint confidence of a regression is the probability that a prediction is off by no more than
    twice what is usual. Where rows may have several classes (labels of 0 and 1, one column per
    class), the result has a line for each row and class.

    Args:
        index: A fitted index of contributions, with labels; its space, metric and target are those
            of the evidence.
        X: Rows to audit, as for `query`; None for the database itself, each row without itself.
        labels: Their labels; None for those of the database where that itself is audited, for those
            of class folders where X is a folder of them, and else for none.
        k: Neighbours that purity is counted among.
        exclude: Rows of the database that are no neighbours, as for `query`; needed where rows of
            `X` are in it.
        joint: A joint confidence fitted before: `joint_model` of another audit.
        budget: How many labels to suspect, whatever their probabilities: as many as there is time
            to look at.
        precision: Share of the suspected labels that should be wrong, by their probabilities;
            without a budget.
        outliers: Typicality below which a row is an outlier: of rows like the database's, about
            this share.
        progress: Whether to show a progress bar on stderr.

    Example:
        >>> import nobsp, torch
        >>> _ = torch.manual_seed(0)
        >>> centres, labels = 2 * torch.randn(3, 8), torch.arange(3).repeat(100)
        >>> activations = centres[labels] + torch.randn(300, 8)
        >>> head = torch.nn.Linear(8, 3)
        >>> head.weight.data, head.bias.data = centres, -centres.square().sum(1) / 2
        >>> labels[7] = 2  # it is a 1
        >>> found = nobsp.audit(nobsp.ContributionIndex(head).fit(activations, labels))
        >>> found.mislabels.nonzero()[0], found.suggested[7]
        (array([7]), np.int64(1))
    """
    _require_arguments(index, k=k, budget=budget, precision=precision, outliers=outliers)
    fitted = index._fitted
    outcomes = fitted.outcomes
    if not fitted.labelled:
        raise ValueError(
            "an audit needs the labels of the database; pass labels to index.fit, or images in one "
            "folder per class."
        )
    rows, leave = index._asked(X, exclude, progress=progress)
    codes = rows.labels if X is None else None  # those of the database
    if labels is None and X is not None:
        labels = outcomes.labels_in(X)
    if labels is not None:
        codes = outcomes.encode(labels, len(rows))

    lines, judged, n_reference = _judge(index, rows, codes, leave, k=k)
    signals = judged.signals
    if signals:
        # Four and no more: where errors are few, further ones (purities, margins, distances to
        # centroids) do harm.
        signals = signals | {"mean distance by evidence": lines.by_evidence.distances.mean(1)}
    believed = confidence.joint_confidence(signals, judged.agreed, judged.right, joint)
    # Rows unlike those of the database are trusted less, and soon not at all.
    trust = trust_values if outcomes.classes is None else trust_classes
    believed = replace(believed, chance=trust(believed.chance, lines.typicality, n_reference))

    result = _result(
        lines,
        replace(judged, signals=signals),
        believed,
        mislabels=_suspects(judged, budget, precision),
        outliers=lines.typicality < outliers,
        has_classes=outcomes.classes is not None,
    )
    return replace(result, reasons=give_reasons(result))


def _judge(
    index: ContributionIndex, rows: Rows, codes: Tensor | None, leave: Tensor | None, *, k: int
) -> tuple[_Lines, confidence.Judgement, int]:
    """What neighbours in both spaces say of the rows.

    With it, how many rows of the database tell what is usual.
    """
    fitted = index._fitted
    outcomes = fitted.outcomes
    spaces = _Spaces(index._view(space="contributions"), index._view(space="activations"))
    by_evidence, by_activations = spaces.neighbours(rows, k, leave)
    voters = by_activations.indices
    reference = fitted.cached(f"reference {index.target} {index.metric}", spaces.reference)
    distances = neighbour_distances(fitted, rows, by_evidence.distances, voters)
    lines = _Lines(
        row=np.arange(len(rows)),
        by_evidence=by_evidence.nearest(k),
        by_activations=by_activations.nearest(k),
        typicality=reference.typicality(distances),
    )

    if outcomes.classes is None:
        judged = confidence.judge_values(fitted, rows, codes, voters, leave)
    else:
        judged = confidence.judge_classes(fitted, rows, codes, voters, leave, reference.nearby)
    if outcomes.several:
        lines = lines.class_by_class(judged, n_classes=outcomes.count)
    return lines, judged, len(reference)


def _result(
    lines: _Lines,
    judged: confidence.Judgement,
    believed: confidence.JointConfidence,
    *,
    mislabels: Flags | None,
    outliers: Flags,
    has_classes: bool,
) -> Audit:
    """What was judged, without the reasons."""
    boundary = np.zeros(len(lines.row), dtype=bool)
    scores = {"joint": believed.chance}
    if has_classes:
        boundary = lines.are_at_boundary()
        scores = lines.scores(judged) | scores

    return Audit(
        rows=lines.row,
        predicted=judged.predicted,
        labels=judged.labels,
        confidence=judged.confidence,
        joint=believed.chance,
        joint_kind=believed.kind,
        typicality=lines.typicality,
        errors=believed.chance < 0.5,
        boundary=boundary,
        outliers=outliers,
        mislabels=mislabels,
        label_score=judged.label_score,
        suggested=judged.suggested,
        signals=judged.signals,
        joint_model=believed.model,
        auroc=_tell_errors(scores, judged.right, mislabels),
        by_contributions=lines.by_evidence,
        by_activations=lines.by_activations,
        outputs=judged.outputs,
        expected_error=judged.expected_error,
    )


def _require_arguments(
    index: object, *, k: int, budget: int | None, precision: float, outliers: float
) -> None:
    """Raises where an argument cannot be meant."""
    require_whole_number("k", k)
    if budget is not None:
        require_whole_number("budget", budget)
    for name, share in (("precision", precision), ("outliers", outliers)):
        require_number(name, share, least=0, most=1)
    if not isinstance(index, ContributionIndex):
        raise TypeError(
            "index must be a ContributionIndex(explainer).fit(X, labels), found "
            f"{type(index).__name__}; for a model, explainer is nobsp.NObSP(model).fit(X), or "
            "NObSPCam of images."
        )


@dataclass(frozen=True, eq=False)
class _Lines:
    """What an audit judges, a line per row, or per row and class where there may be several."""

    row: NDArray[np.intp]  # which row each line is about
    by_evidence: Neighbors
    by_activations: Neighbors
    typicality: Array

    def class_by_class(self, judged: confidence.Judgement, *, n_classes: int) -> _Lines:
        """A line for every class of each row."""
        row = np.repeat(self.row, n_classes)
        return _Lines(
            row=row,
            by_evidence=_class_by_class(self.by_evidence, judged),
            by_activations=_class_by_class(self.by_activations, judged),
            typicality=self.typicality[row],
        )

    def are_at_boundary(self) -> Flags:
        """Whose neighbours by activations are of several classes."""
        purity = self.by_activations.purity
        return np.asarray((purity >= BOUNDARY[0]) & (purity <= BOUNDARY[1]))

    def scores(self, judged: confidence.Judgement) -> dict[str, Array]:
        """What may tell right predictions from wrong ones, each by itself."""
        return {
            "confidence": judged.confidence,
            "purity by evidence": self.by_evidence.purity,
            "purity by activations": self.by_activations.purity,
        }


@dataclass(frozen=True, eq=False)
class _Spaces:
    """A database in the two spaces that an audit looks at."""

    contributions: ContributionIndex
    activations: ContributionIndex

    def neighbours(self, rows: Rows, k: int, leave: Tensor | None) -> tuple[Neighbors, Neighbors]:
        """Neighbours by evidence and by activations.

        By evidence at least those that typicality needs, by activations at least the voters.
        """
        n_others = len(self.contributions) - most_left_out(leave)
        n_by_evidence = max(k, min(N_NEAREST_BY_EVIDENCE, n_others))
        n_voters = max(k, min(TUNING.n_voters, n_others))
        by_evidence = self.contributions._query_rows(rows, n_by_evidence, leave)
        return by_evidence, self.activations._query_rows(rows, n_voters, leave)

    def reference(self) -> Reference:
        """How far rows of the database are from their neighbours, each without itself."""
        fitted = self.contributions._fitted
        positions = reference_positions(fitted)
        rows = fitted.backend.take(positions)
        by_evidence, nearby = self.neighbours(rows, 1, positions[:, None])
        distances = neighbour_distances(fitted, rows, by_evidence.distances, nearby.indices)
        return Reference(distances, nearby.indices)


def _class_by_class(hits: Neighbors, judged: confidence.Judgement) -> Neighbors:
    """Neighbours once for each class of a row: whether they are of it."""
    assert hits.labels is not None
    is_of_class = np.swapaxes(hits.labels, 1, 2).reshape(-1, hits.k) > 0
    lines = hits[np.repeat(np.arange(len(hits)), hits.labels.shape[2])]
    return replace(
        lines,
        labels=is_of_class,
        classes=np.array([False, True]),
        predicted=judged.predicted,
        confidence=judged.confidence,
    )


def _suspects(judged: confidence.Judgement, budget: int | None, precision: float) -> Flags | None:
    """The labels most probably wrong: `budget` of them, or as many as keep the precision.

    The precision is what their mean probability of being wrong must reach.

    Without a budget none is less probable than `_LEAST_DOUBT`: a few sure ones do not pay for
    others that are probably right. None without labels.
    """
    if judged.label_score is None:
        return None
    is_doubted = judged.suggested != judged.labels
    wrong = np.where(is_doubted, 1 - judged.label_score, 0.0)
    order = np.argsort(-wrong, kind="stable")
    count = budget
    if count is None:
        ordered = wrong[order]
        is_precise = np.cumsum(ordered) >= precision * np.arange(1, len(wrong) + 1)
        is_probable = ordered >= min(precision, _LEAST_DOUBT)
        count = int((is_precise & is_probable).sum())
    flags = np.zeros(len(wrong), dtype=bool)
    flags[order[:count]] = True
    return flags & (wrong > 0)


def _tell_errors(
    scores: dict[str, Array], right: Flags | None, mislabels: Flags | None
) -> dict[str, float]:
    """How well each score tells right from wrong predictions; empty where too few are wrong.

    By rows whose label is not suspected: a wrong label makes a right prediction look wrong.
    """
    if right is None or mislabels is None:
        return {}
    trusted = right[~mislabels]
    if (~trusted).sum() < TUNING.fewest_errors or not trusted.any():
        return {}
    from sklearn.metrics import roc_auc_score

    return {
        name: float(roc_auc_score(trusted, score[~mislabels])) for name, score in scores.items()
    }
