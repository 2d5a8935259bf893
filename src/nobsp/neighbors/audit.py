"""Auditing predictions and labels by their neighbours: likely errors, mislabels, boundary cases and outliers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp._messages import require_whole_number
from nobsp.neighbors.confidence import (
    FEWEST_ERRORS,
    NEAR,
    VOTERS,
    Reference,
    cross_validate,
    expect_values,
    fit_centroids,
    fit_confidence,
    fit_heads,
    fit_reference,
    neighbour_distances,
    reference_positions,
    usual_error,
    weigh_support,
    weigh_vote,
)
from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.index import ContributionIndex, most_left_out, positions_to_leave
from nobsp.neighbors.result import Neighbors
from nobsp.neighbors.search import Fitted
from nobsp.tabular.explanation import frame_like

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Activation purity of a boundary case, as in the paper.
BOUNDARY = (0.4, 0.7)
# How fast trust falls beyond the furthest row of the database: a power of typicality.
_STEEP = 8
# Probability to be wrong of a label that is suspected, at least.
_LEAST = 0.25


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What an audit found, row by row.

    Attributes:
        rows: Positions of the audited rows: in `X`, or in the database where that itself was audited.
        predicted: The predicted class; of a regression the value.
        labels: The labels given; None without.
        confidence: Softmax probability of the predicted class; NaN for a regression, as purities are.
        purity_contributions: Share of neighbours by evidence whose label is the predicted class.
        purity_activations: The same among neighbours by activations.
        joint: Joint confidence that the prediction is right, from 0 to 1.
        joint_kind: "cross-validated" where it was fitted to the labels given, each row by a fit without it; "given"
            where it was fitted before; "fixed" for `agreed`.
        agreed: Probability of the predicted class by the softmax and a vote of 50 neighbours together.
        typicality: Share of the database's own rows that are further from their neighbours, in both spaces together;
            below 1/1000 where hardly any is. Inputs from elsewhere have next to none.
        errors: Whether the joint confidence is below one half.
        boundary: Whether the activation purity is that of a boundary case.
        outliers: Whether the typicality is below the quantile chosen.
        mislabels: Whether the label is suspected to be wrong; None without labels.
        label_score: Probability that the label is right, by neighbours, class centroids and cross-fitted heads that did
            not see it: the less, the more suspicious; None without labels.
        suggested: The class that they make most probable, or the value that they expect.
        reasons: In words, why a row was flagged; empty for others.
        signals: What the joint confidence is made of, by name.
        joint_model: The fitted logistic regression, for `audit(..., joint=)` of other rows; None for the fixed rule.
        auroc: How well each signal tells right from wrong predictions, without rows whose label is suspected; empty
            below 20 errors.
        by_contributions: The neighbours by evidence.
        by_activations: The neighbours by activations.
        outputs: Where rows may have several classes: the class that a line is about. There is a line for each row and
            class; labels, predicted and suggested say whether the row is of it. None otherwise.
        expected_error: How far the prediction of a regression is off, on average; None for classes.
    """

    rows: NDArray[np.int64]
    predicted: NDArray[Any]
    labels: NDArray[Any] | None
    confidence: Array
    purity_contributions: Array
    purity_activations: Array
    joint: Array
    joint_kind: Literal["cross-validated", "given", "fixed"]
    agreed: Array
    typicality: Array
    errors: Flags
    boundary: Flags
    outliers: Flags
    mislabels: Flags | None
    label_score: Array | None
    suggested: NDArray[Any]
    reasons: tuple[str, ...]
    signals: dict[str, Array]
    joint_model: Any
    auroc: dict[str, float]
    by_contributions: Neighbors
    by_activations: Neighbors
    outputs: NDArray[Any] | None = None
    expected_error: Array | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def flagged(self) -> NDArray[np.int64]:
        """Positions of all rows with a reason, least joint confidence first."""
        positions = np.flatnonzero([bool(reason) for reason in self.reasons])
        return positions[np.argsort(self.joint[positions], kind="stable")]

    @property
    def expected_errors(self) -> dict[Any, float]:
        """How many labels of each class (of a regression: of all) are expected to be wrong; empty without labels."""
        if self.labels is None or self.label_score is None:
            return {}
        if self.expected_error is not None:
            return {"all": float((1 - self.label_score).sum())}
        about = self.labels if self.outputs is None else self.outputs
        return {label.item(): float((1 - self.label_score)[about == label].sum()) for label in np.unique(about)}

    def to_frame(self) -> Any:
        """One line per row, as a pandas frame, or a polars one where pandas is missing.

        With labels, cleanlab's columns stand beside ours: `is_label_issue`, `label_score`, `given_label` and
        `predicted_label`, which is the class, or value, suggested. Where rows may have several classes, there is a line
        for each row and class, and `output` names the class.
        """
        columns: dict[str, Any] = {"row": self.rows}
        if self.outputs is not None:
            columns["output"] = self.outputs
        columns["predicted"] = self.predicted
        if self.labels is not None:
            columns["label"] = self.labels
        columns |= {
            "confidence": self.confidence,
            "purity_contributions": self.purity_contributions,
            "purity_activations": self.purity_activations,
            "joint": self.joint,
            "typicality": self.typicality,
            **({} if self.expected_error is None else {"expected_error": self.expected_error}),
            "error": self.errors,
            "boundary": self.boundary,
            "outlier": self.outliers,
        }
        if self.mislabels is not None:
            columns |= {"is_label_issue": self.mislabels, "label_score": self.label_score}
            columns |= {"given_label": self.labels, "predicted_label": self.suggested}
        columns |= {"suggested": self.suggested, "reason": np.array(self.reasons, dtype=object)}
        return frame_like(None, {name: list(v) if v.dtype == object else v for name, v in columns.items()})

    def issue_manager(self) -> Any:
        """The suspected labels as an issue manager of cleanlab's Datalab, a class to be registered with it.

        Its issues are called "nobsp_label"; `lab.get_issues("nobsp_label")` has `is_nobsp_label_issue` and
        `nobsp_label_score`, `lab.get_info("nobsp_label")` has `given_label` and `predicted_label`.

        Raises:
            ValueError: If there are no labels.
            ImportError: If cleanlab is missing.

        Example:
            >>> from cleanlab.datalab.internal.issue_manager_factory import register  # doctest: +SKIP
            >>> _ = register(found.issue_manager())  # doctest: +SKIP
            >>> lab.find_issues(issue_types={"nobsp_label": {}})  # doctest: +SKIP
        """
        if self.mislabels is None or self.label_score is None:
            raise ValueError("an audit without labels has no label issues; pass labels to audit.")
        try:
            import pandas as pd
            from cleanlab.datalab.internal.issue_manager import IssueManager  # type: ignore[import-untyped]
        except ImportError as missing:
            raise ImportError("an issue manager needs cleanlab and pandas: pip install cleanlab.") from missing
        flags, scores = self.mislabels, self.label_score
        about = {"given_label": self.labels, "predicted_label": self.suggested}

        class LabelIssues(IssueManager):  # type: ignore[misc]  # cleanlab has no types
            """Labels that neighbours, class centroids and cross-fitted heads speak against."""

            description = "Labels that are probably wrong, by rows with similar evidence."
            issue_name = "nobsp_label"

            def find_issues(self, **_: Any) -> None:
                count = len(self.datalab.data)
                if count != len(flags):
                    raise ValueError(f"the audit is of {len(flags)} rows but the Datalab has {count}; audit the same.")
                self.issues = pd.DataFrame({"is_nobsp_label_issue": flags, self.issue_score_key: scores})
                self.summary = self.make_summary(score=float(scores.mean()))
                self.info = {**about, "num_issues": int(flags.sum())}

        return LabelIssues

    def summary(self, most: int = 5) -> str:
        """What was found, in words, with the most suspicious rows.

        Args:
            most: How many rows to show.
        """
        about = f"mean confidence {self.confidence.mean():.3f}, mean purity {self.purity_contributions.mean():.3f} by "
        about += f"evidence, {self.purity_activations.mean():.3f} by activations"
        if self.expected_error is not None:
            about = f"median expected error {np.median(self.expected_error):.4g}"
        lines = [
            f"{len(self)} predictions audited: {about}",
            f"  likely errors (joint confidence below 0.5, {self.joint_kind}): {self.errors.sum()}",
            f"  boundary cases (activation purity {BOUNDARY[0]} to {BOUNDARY[1]}): {self.boundary.sum()}",
            f"  outliers (unlike the database): {self.outliers.sum()}",
        ]
        if self.expected_error is not None:
            del lines[2]
        if self.mislabels is not None:
            expected = sum(self.expected_errors.values())
            lines.append(f"  suspected mislabels: {self.mislabels.sum()}; {expected:.0f} wrong labels expected in all")
        if self.auroc:
            scores = ", ".join(f"{name} {score:.3f}" for name, score in self.auroc.items())
            lines.append(f"  telling right from wrong predictions, AUROC: {scores}")
        doubted = self.flagged if self.mislabels is None else self.flagged[self.mislabels[self.flagged]]
        # Labels first: a wrong one is news, and likely errors are many.
        first = list(dict.fromkeys([*doubted, *self.flagged]))[:most]
        lines += [f"  row {self.rows[i]}: {self.reasons[i]}" for i in first]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        counts = {"likely errors": self.errors, "boundary cases": self.boundary, "outliers": self.outliers}
        if self.mislabels is not None:
            counts["suspected mislabels"] = self.mislabels
        found = ", ".join(f"{flags.sum()} {name}" for name, flags in counts.items())
        return f"Audit({len(self)} rows: {found})"


def audit(
    index: ContributionIndex,
    X: Any = None,
    labels: Any = None,
    *,
    k: int = 8,
    exclude: Any = None,
    joint: Any = None,
    budget: int | None = None,
    precision: float = 0.8,
    outliers: float = 0.01,
    progress: bool = False,
) -> Audit:
    """Looks at predictions through their neighbours, in both spaces at once, with one forward pass over the rows.

    - *Likely errors*: the joint confidence is below one half. It combines the softmax with a vote of the 50 nearest
      rows by activations, and with how near the neighbours by evidence are. With labels it is a logistic regression,
      each row judged by one that was fitted without it; pass `joint` to judge by a regression fitted before, on other
      rows; with neither, it is `agreed`: the softmax times a power of the vote, brought to sum to one. The power, from
      0 to 1, tells errors of cross-fitted heads among the database's own rows best; it is 0 where they make few. Rows
      unlike any in the database are trusted less, whatever the model says.
    - *Boundary cases*: activation purity from 0.4 to 0.7.
    - *Outliers*: rows of little typicality: further from their neighbours than rows of the database are from theirs.
    - *Suspected mislabels*: as many of the least probable labels as can be suspected with the precision asked for.

    Labels of a regression are judged by cross-fitted heads and what these miss among the neighbours; its joint
    confidence is the probability that the prediction is off by no more than twice what is usual. Where rows may have
    several classes (labels of 0 and 1, one column per class), each of them is a question of its own, and the result
    has a line for each row and class.

    Args:
        index: A fitted index with labels; its own space, metric and target are those of the contributions.
        X: Rows to audit, as for `query`; None for the database itself, each row without itself.
        labels: Their labels; None for those of the database where that itself is audited, and else for none.
        k: Neighbours that purity is counted among.
        exclude: Rows of the database that are no neighbours, as for `query`; needed where rows of `X` are in it.
        joint: A joint confidence fitted before: `joint_model` of another audit.
        budget: How many labels to suspect, whatever their probabilities: as many as there is time to look at.
        precision: Share of the suspected labels that should be wrong, by their probabilities; without a budget.
        outliers: Typicality below which a row is an outlier: of rows like the database's, about this share.
        progress: Whether to show a progress bar on stderr.

    Returns:
        What was found.

    Raises:
        ValueError: If the database has no labels, the index keeps activations only, or `precision` or `outliers` is no
            share.

    Example:
        >>> import torch
        >>> from nobsp.neighbors import ContributionIndex, audit
        >>> _ = torch.manual_seed(0)
        >>> centres, labels = 2 * torch.randn(3, 8), torch.arange(3).repeat(100)
        >>> activations = centres[labels] + torch.randn(300, 8)
        >>> head = torch.nn.Linear(8, 3)
        >>> head.weight.data, head.bias.data = centres, -centres.square().sum(1) / 2
        >>> labels[7] = 2  # it is a 1
        >>> found = audit(ContributionIndex(head).fit(activations, labels))
        >>> found.mislabels.nonzero()[0], found.suggested[7]
        (array([7]), np.int64(1))
    """
    require_whole_number("k", k)
    if budget is not None:
        require_whole_number("budget", budget)
    for name, share in (("precision", precision), ("outliers", outliers)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name} must be a share from 0 to 1, found {share!r}.")
    if not isinstance(index, ContributionIndex):
        raise TypeError(
            f"index must be a ContributionIndex, found {type(index).__name__}; make one with "
            "nobsp.ContributionIndex(explainer).fit(X, labels)."
        )
    fitted, outcomes = index._fitted, index._fitted.outcomes
    if not fitted.labelled:
        raise ValueError("an audit needs the labels of the database; pass labels to index.fit.")
    contributions, activations = index._view(space="contributions"), index._view(space="activations")
    if X is None:
        rows = fitted.backend.take(torch.arange(len(index)))
        exclude = "self" if exclude is None else exclude
        if labels is None:
            assert rows.labels is not None
            labels = outcomes.decode(rows.labels)
    else:
        rows = index._read(X, progress=progress)
    codes = None if labels is None else outcomes.encode(labels, len(rows))
    leave = positions_to_leave(exclude, len(rows), len(index))
    by_evidence, nearby = _both_ways(contributions, activations, rows, k, leave)
    reference, near = fitted.cached(
        f"reference {index.target} {index.metric}", lambda: _reference(contributions, activations)
    )
    distances = neighbour_distances(fitted.backend.take, rows, by_evidence.distances, nearby.indices)
    typicality = reference.typicality(distances)
    by_evidence, by_activations = by_evidence.nearest(k), nearby.nearest(k)
    if outcomes.classes is None:
        judged = _judge_values(fitted, rows, codes, nearby.indices, leave)
    else:
        judged = _judge_classes(fitted, rows, codes, nearby.indices, leave, near)
    lines = judged.outputs is not None  # one for each class of a row
    of = np.repeat(np.arange(len(rows)), outcomes.count if lines else 1)
    typicality = typicality[of]
    if lines:
        by_evidence, by_activations = (_about_each(hits, judged) for hits in (by_evidence, by_activations))
    # Four and no more: where errors are few, further ones (purities, margins, distances to centroids) make it worse.
    signals = judged.signals | {"mean distance by evidence": by_evidence.distances.mean(1)} if judged.signals else {}
    chance, kind, model = _joint_confidence(signals, judged.agreed, judged.right, joint)
    # Rows further from their neighbours than any of the database is are trusted less, and soon not at all.
    chance = chance * np.minimum(1.0, typicality * (len(reference.known) + 1)) ** _STEEP
    nothing = np.full(len(of), np.nan)
    purity, purity_activations = (
        nothing if outcomes.classes is None else hits.purity for hits in (by_evidence, by_activations)
    )
    mislabels = None
    if judged.wrong is not None:
        mislabels = _suspects(np.where(judged.suggested != judged.labels, judged.wrong, 0.0), budget, precision)
    scores = {
        "confidence": judged.confidence,
        "purity by evidence": purity,
        "purity by activations": purity_activations,
        "joint": chance,
    }
    scores = {name: score for name, score in scores.items() if not np.isnan(score).any()}
    found = Audit(
        rows=of,
        predicted=judged.predicted,
        labels=judged.labels,
        confidence=judged.confidence,
        purity_contributions=purity,
        purity_activations=purity_activations,
        joint=chance,
        joint_kind=kind,
        agreed=judged.agreed,
        typicality=typicality,
        errors=chance < 0.5,
        boundary=(purity_activations >= BOUNDARY[0]) & (purity_activations <= BOUNDARY[1]),
        outliers=typicality < outliers,
        mislabels=mislabels,
        label_score=None if judged.wrong is None else 1 - judged.wrong,
        suggested=judged.suggested,
        reasons=(),
        signals=signals,
        joint_model=model,
        auroc={} if judged.right is None or mislabels is None else _auroc(scores, judged.right, ~mislabels),
        by_contributions=by_evidence,
        by_activations=by_activations,
        outputs=judged.outputs,
        expected_error=judged.expected_error,
    )
    return replace(found, reasons=_reasons(found))


@dataclass(frozen=True, eq=False)
class Judged:
    """What is thought of each row; where rows may have several classes, of each row and class."""

    predicted: NDArray[Any]
    labels: NDArray[Any] | None
    suggested: NDArray[Any]
    confidence: Array
    agreed: Array
    signals: dict[str, Array]
    right: Flags | None
    wrong: Array | None
    outputs: NDArray[Any] | None = None
    expected_error: Array | None = None


def _judge_classes(
    fitted: Fitted,
    rows: Rows,
    codes: Tensor | None,
    voters: NDArray[np.int64],
    leave: Tensor | None,
    reference: NDArray[np.int64],
) -> Judged:
    """Predicted classes and labels, by the softmax (or sigmoids), neighbours, centroids and cross-fitted heads."""
    outcomes, take, count = fitted.outcomes, fitted.backend.take, len(fitted.backend)
    assert outcomes.classes is not None
    space, several = fitted.space("activations", "euclidean"), outcomes.several
    centroids = fitted.cached("centroids", lambda: fit_centroids(space, take, count, 0 if several else outcomes.count))
    heads = fitted.cached("heads", lambda: fit_heads(space, take, count, outcomes.count))
    logits = fitted.logits(rows)
    if several:
        chances, say = torch.nn.functional.logsigmoid(torch.stack([-logits, logits], dim=2)), 1.0
    else:
        chances = outcomes.log_probabilities(logits)
        say = fitted.cached("say", lambda: weigh_vote(centroids, reference, count, heads))
    support = weigh_support(centroids, rows, chances, voters, heads=heads, labels=codes, leave=leave, say=say)
    if several:
        predicted, suggested = (logits > 0).flatten().numpy(), support.suggested > 0
        given, names = None if codes is None else codes.flatten().numpy() > 0, np.tile(outcomes.classes, len(rows))
    else:
        predicted, suggested = outcomes.decode(rows.predicted), outcomes.decode(torch.from_numpy(support.suggested))
        given, names = None if codes is None else outcomes.decode(codes), None
    signals = {
        "log-odds of the confidence": support.confidence,
        "logarithm of the vote": support.vote,
        "log-odds of confidence and vote": support.agreed,
    }
    right, chance = None if given is None else predicted == given, chances.amax(-1).exp().flatten().numpy()
    return Judged(predicted, given, suggested, chance, support.fixed_rule(), signals, right, support.wrong, names)


def _judge_values(
    fitted: Fitted, rows: Rows, codes: Tensor | None, voters: NDArray[np.int64], leave: Tensor | None
) -> Judged:
    """Predicted values and labels, by cross-fitted heads and what these miss among the neighbours.

    A label about the value expected has Laplace's distribution; with d between it and the model's prediction, and b the
    mean size of its residuals, the model is off by |d| + b exp(−|d| / b) on average.
    """
    from scipy.stats import laplace

    take, count, space = fitted.backend.take, len(fitted.backend), fitted.space("activations", "euclidean")
    heads = fitted.cached("heads", lambda: fit_heads(space, take, count, 1))
    expected = expect_values(take, rows, voters, heads=heads, labels=codes, leave=leave)
    size, predicted = expected.spread / np.log(2), rows.response.numpy().copy()
    away = np.abs(predicted - expected.middle)
    tolerance = 2 * fitted.cached("usual error", lambda: usual_error(take, reference_positions(count), heads))
    chance = laplace.cdf(tolerance - away, scale=size) - laplace.cdf(-tolerance - away, scale=size)
    given = None if codes is None else codes.numpy().copy()
    right = None if given is None else np.abs(predicted - given) <= tolerance
    error, nothing = away + size * np.exp(-away / size), np.full(len(rows), np.nan)
    return Judged(predicted, given, expected.middle, nothing, chance, {}, right, expected.wrong, expected_error=error)


def _about_each(hits: Neighbors, judged: Judged) -> Neighbors:
    """Neighbours once for each class of a row: whether they are of it."""
    assert hits.labels is not None
    yes = np.swapaxes(hits.labels, 1, 2).reshape(-1, hits.k) > 0
    lines = hits[np.repeat(np.arange(len(hits)), hits.labels.shape[2])]
    return replace(
        lines, labels=yes, predicted=judged.predicted, confidence=judged.confidence, classes=np.array([False, True])
    )


def _both_ways(
    contributions: ContributionIndex, activations: ContributionIndex, rows: Rows, k: int, leave: Tensor | None
) -> tuple[Neighbors, Neighbors]:
    """Neighbours by evidence, at least those of typicality, and by activations, at least the voters."""
    there = len(contributions) - most_left_out(leave)
    by_evidence = contributions._query_rows(rows, max(k, min(NEAR, there)), exclude=leave)
    return by_evidence, activations._query_rows(rows, max(k, min(VOTERS, there)), exclude=leave)


def _reference(contributions: ContributionIndex, activations: ContributionIndex) -> tuple[Reference, NDArray[np.int64]]:
    """How far rows of the database are from their neighbours, each without itself; and these by activations."""
    positions = reference_positions(len(contributions))
    take = contributions._fitted.backend.take
    rows = take(positions)
    by_evidence, nearby = _both_ways(contributions, activations, rows, 1, positions[:, None])
    return fit_reference(neighbour_distances(take, rows, by_evidence.distances, nearby.indices)), nearby.indices


def _suspects(wrong: Array, budget: int | None, precision: float) -> Flags:
    """The labels most probably wrong: so many, or as many as keep their mean probability at the precision.

    Without a budget none is less probable than `_LEAST`: a few sure ones do not pay for others that are probably right.
    """
    order = np.argsort(-wrong, kind="stable")
    count = budget
    if count is None:
        enough = np.cumsum(wrong[order]) >= precision * np.arange(1, len(wrong) + 1)
        count = int((enough & (wrong[order] >= min(precision, _LEAST))).sum())
    flags = np.zeros(len(wrong), dtype=bool)
    flags[order[:count]] = True
    return flags & (wrong > 0)


def _joint_confidence(
    signals: dict[str, Array], agreed: Array, right: Flags | None, joint: Any
) -> tuple[Array, Literal["cross-validated", "given", "fixed"], Any]:
    """Joint confidence by a regression fitted before, by one fitted here, or by the fixed rule."""
    if not signals:
        return agreed, "fixed", None
    if joint is not None:
        return joint.predict_proba(np.column_stack(list(signals.values())))[:, 1], "given", joint
    if right is not None:
        first, *others = signals
        alone = {first: signals[first]} | {name: np.zeros(len(right)) for name in others}
        chance, softmax = cross_validate(signals, right), cross_validate(alone, right)
        if chance is not None and softmax is not None:
            # The softmax alone, unless neighbours explain the errors better by more than two standard errors.
            gain = np.log(np.where(right, chance, 1 - chance) / np.where(right, softmax, 1 - softmax))
            if gain.mean() <= 2 * gain.std() / len(gain) ** 0.5:
                signals, chance = alone, softmax
            return chance, "cross-validated", fit_confidence(signals, right)
    return agreed, "fixed", None


def _reasons(found: Audit) -> tuple[str, ...]:
    """In words, why each row was flagged."""
    k, values = found.by_contributions.k, found.expected_error
    if values is None:
        count = [np.rint(hits.purity * k).astype(int) for hits in (found.by_contributions, found.by_activations)]
        other = [
            np.rint(hits.purity_towards(found.suggested) * k).astype(int)
            for hits in (found.by_contributions, found.by_activations)
        ]
    reasons = [""] * len(found)
    flags = [found.errors, found.boundary, found.outliers, *([] if found.mislabels is None else [found.mislabels])]
    for row in np.flatnonzero(np.any(flags, axis=0)):
        why = []
        if found.mislabels is not None and found.labels is not None and found.mislabels[row]:
            assert found.label_score is not None
            text = f"labelled {_show(found.labels[row])}, right with probability {found.label_score[row]:.2f}: "
            if values is None:
                text += f"{other[0][row]} of {k} neighbours by evidence and {other[1][row]} by activations are "
                why.append(text + _show(found.suggested[row]))
            else:
                why.append(f"{text}{_show(found.suggested[row])} is expected by its neighbours")
        if found.errors[row]:
            text = f"predicted {_show(found.predicted[row])} with joint confidence {found.joint[row]:.2f}: "
            if values is None:
                text += f"{count[0][row]} of {k} neighbours by evidence and {count[1][row]} by activations agree"
            else:
                text += f"off by {values[row]:.4g}, by what its neighbours are like"
            why.append(text)
        if found.boundary[row]:
            why.append(f"near a boundary: {count[1][row]} of {k} neighbours by activations are of its class")
        if found.outliers[row]:
            why.append(
                f"unlike the database: typicality {found.typicality[row]:.2g}, the share of its rows that are further "
                "from their neighbours"
            )
        which = "" if found.outputs is None else f"{found.outputs[row]}: "
        reasons[row] = which + "; ".join(why)
    return tuple(reasons)


def _auroc(scores: dict[str, Array], right: Flags, trusted: Flags) -> dict[str, float]:
    """By rows whose label is not suspected: a wrong label makes a right prediction look wrong."""
    right = right[trusted]
    if (~right).sum() < FEWEST_ERRORS or not right.any():
        return {}
    from sklearn.metrics import roc_auc_score

    return {name: float(roc_auc_score(right, score[trusted])) for name, score in scores.items()}


def _show(label: Any) -> str:
    value = label.item() if hasattr(label, "item") else label
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
