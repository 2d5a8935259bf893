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
    NEAR,
    VOTERS,
    Reference,
    cross_validate,
    fit_centroids,
    fit_confidence,
    fit_heads,
    fit_reference,
    neighbour_distances,
    reference_positions,
    weigh_support,
)
from nobsp.neighbors.evidence import Rows
from nobsp.neighbors.index import ContributionIndex, most_left_out, positions_to_leave
from nobsp.neighbors.result import Neighbors
from nobsp.tabular.explanation import frame_like

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Activation purity of a boundary case, as in the paper.
BOUNDARY = (0.4, 0.7)
# Below this typicality a joint confidence shrinks in proportion to it: strange rows are trusted less.
_STRANGE = 0.01
# Probability to be wrong of a label that is suspected, at least.
_LEAST = 0.25
# An AUROC of fewer errors says nothing.
_FEWEST_ERRORS = 20


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What an audit found, row by row.

    Attributes:
        rows: Positions of the audited rows: in `X`, or in the database where that itself was audited.
        predicted: The predicted class.
        labels: The labels given; None without.
        confidence: Softmax probability of the predicted class.
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
        suggested: The class that they make most probable.
        reasons: In words, why a row was flagged; empty for others.
        signals: What the joint confidence is made of, by name.
        joint_model: The fitted logistic regression, for `audit(..., joint=)` of other rows; None for the fixed rule.
        auroc: How well each signal tells right from wrong predictions, without rows whose label is suspected; empty
            below 20 errors.
        by_contributions: The neighbours by evidence.
        by_activations: The neighbours by activations.
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

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def flagged(self) -> NDArray[np.int64]:
        """Positions of all rows with a reason, least joint confidence first."""
        positions = np.flatnonzero([bool(reason) for reason in self.reasons])
        return positions[np.argsort(self.joint[positions], kind="stable")]

    @property
    def expected_errors(self) -> dict[Any, float]:
        """Labels of each class that are expected to be wrong, as a number of rows; empty without labels."""
        if self.labels is None or self.label_score is None:
            return {}
        known = np.unique(self.labels)
        return {label.item(): float((1 - self.label_score)[self.labels == label].sum()) for label in known}

    def to_frame(self) -> Any:
        """One line per row, as a pandas frame, or a polars one where pandas is missing.

        With labels, cleanlab's columns stand beside ours: `is_label_issue`, `label_score`, `given_label` and
        `predicted_label`, which is the class suggested.
        """
        columns: dict[str, Any] = {"row": self.rows, "predicted": self.predicted}
        if self.labels is not None:
            columns["label"] = self.labels
        columns |= {
            "confidence": self.confidence,
            "purity_contributions": self.purity_contributions,
            "purity_activations": self.purity_activations,
            "joint": self.joint,
            "typicality": self.typicality,
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
        lines = [
            f"{len(self)} predictions audited: mean confidence {self.confidence.mean():.3f}, mean purity "
            f"{self.purity_contributions.mean():.3f} by evidence, {self.purity_activations.mean():.3f} by activations",
            f"  likely errors (joint confidence below 0.5, {self.joint_kind}): {self.errors.sum()}",
            f"  boundary cases (activation purity {BOUNDARY[0]} to {BOUNDARY[1]}): {self.boundary.sum()}",
            f"  outliers (unlike the database): {self.outliers.sum()}",
        ]
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
      rows; with neither, it is `agreed`: the softmax times the vote, brought to sum to one. Rows of little typicality
      are trusted less, whatever the model says.
    - *Boundary cases*: activation purity from 0.4 to 0.7.
    - *Outliers*: rows of little typicality: further from their neighbours than rows of the database are from theirs.
    - *Suspected mislabels*: as many of the least probable labels as can be suspected with the precision asked for.

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
        ValueError: If the model is a regression, the database has no labels, the index keeps activations only, or
            `precision` or `outliers` is no share.

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
    if outcomes.classes is None:
        raise ValueError("an audit judges predicted classes, and a regression has none; use index.query(X) instead.")
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
    take, space = fitted.backend.take, fitted.space("activations", "euclidean")
    centroids = fitted.cached("centroids", lambda: fit_centroids(space, take, len(index), outcomes.count))
    heads = fitted.cached("heads", lambda: fit_heads(space, take, len(index), outcomes.count))
    reference = fitted.cached(
        f"reference {index.target} {index.metric}", lambda: _reference(contributions, activations)
    )
    typicality = reference.typicality(neighbour_distances(take, rows, by_evidence.distances, nearby.indices))
    by_evidence, by_activations = by_evidence.nearest(k), nearby.nearest(k)
    log_probabilities = outcomes.log_probabilities(fitted.logits(rows))
    support = weigh_support(centroids, rows, log_probabilities, nearby.indices, heads=heads, labels=codes, leave=leave)
    # Four and no more: where errors are few, further ones (purities, margins, distances to centroids) make it worse.
    signals = {
        "log-odds of the confidence": support.confidence,
        "logarithm of the vote": support.vote,
        "log-odds of confidence and vote": support.agreed,
        "mean distance by evidence": by_evidence.distances.mean(1),
    }
    right = None if codes is None else rows.predicted.numpy() == codes.numpy()
    agreed = support.fixed_rule()
    chance, kind, model = _joint_confidence(signals, agreed, right, joint)
    chance = chance * np.minimum(1.0, typicality / _STRANGE)

    confidence, purity, purity_activations = rows.response.numpy().copy(), by_evidence.purity, by_activations.purity
    given = None if codes is None else outcomes.decode(codes)
    suggested = outcomes.decode(torch.from_numpy(support.suggested))
    mislabels = None
    if given is not None and support.wrong is not None:
        mislabels = _suspects(np.where(suggested != given, support.wrong, 0.0), budget, precision)
    scores = {
        "confidence": confidence,
        "purity by evidence": purity,
        "purity by activations": purity_activations,
        "joint": chance,
    }
    found = Audit(
        rows=np.arange(len(rows)),
        predicted=by_evidence.predicted,
        labels=given,
        confidence=confidence,
        purity_contributions=purity,
        purity_activations=purity_activations,
        joint=chance,
        joint_kind=kind,
        agreed=agreed,
        typicality=typicality,
        errors=chance < 0.5,
        boundary=(purity_activations >= BOUNDARY[0]) & (purity_activations <= BOUNDARY[1]),
        outliers=typicality < outliers,
        mislabels=mislabels,
        label_score=None if support.wrong is None else 1 - support.wrong,
        suggested=suggested,
        reasons=(),
        signals=signals,
        joint_model=model,
        auroc={} if right is None or mislabels is None else _auroc(scores, right, ~mislabels),
        by_contributions=by_evidence,
        by_activations=by_activations,
    )
    return replace(found, reasons=_reasons(found))


def _both_ways(
    contributions: ContributionIndex, activations: ContributionIndex, rows: Rows, k: int, leave: Tensor | None
) -> tuple[Neighbors, Neighbors]:
    """Neighbours by evidence, at least those of typicality, and by activations, at least the voters."""
    there = len(contributions) - most_left_out(leave)
    by_evidence = contributions._query_rows(rows, max(k, min(NEAR, there)), exclude=leave)
    return by_evidence, activations._query_rows(rows, max(k, min(VOTERS, there)), exclude=leave)


def _reference(contributions: ContributionIndex, activations: ContributionIndex) -> Reference:
    """How far rows of the database are from their neighbours, each without itself."""
    positions = reference_positions(len(contributions))
    take = contributions._fitted.backend.take
    rows = take(positions)
    by_evidence, nearby = _both_ways(contributions, activations, rows, 1, positions[:, None])
    return fit_reference(neighbour_distances(take, rows, by_evidence.distances, nearby.indices))


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
    if joint is not None:
        return joint.predict_proba(np.column_stack(list(signals.values())))[:, 1], "given", joint
    if right is not None:
        chance = cross_validate(signals, right)
        if chance is not None:
            return chance, "cross-validated", fit_confidence(signals, right)
    return agreed, "fixed", None


def _reasons(found: Audit) -> tuple[str, ...]:
    """In words, why each row was flagged."""
    k = found.by_contributions.k

    def count(share: Array) -> NDArray[np.int64]:
        return np.rint(share * k).astype(np.int64)

    agree = count(found.purity_contributions), count(found.purity_activations)
    other = [count(hits.purity_towards(found.suggested)) for hits in (found.by_contributions, found.by_activations)]
    reasons = []
    for row in range(len(found)):
        why = []
        if found.mislabels is not None and found.labels is not None and found.mislabels[row]:
            assert found.label_score is not None
            why.append(
                f"labelled {_show(found.labels[row])}, right with probability {found.label_score[row]:.2f}: "
                f"{other[0][row]} of {k} neighbours by evidence and "
                f"{other[1][row]} by activations are {_show(found.suggested[row])}"
            )
        if found.errors[row]:
            why.append(
                f"predicted {_show(found.predicted[row])} with joint confidence {found.joint[row]:.2f}: "
                f"{agree[0][row]} of {k} neighbours by evidence and {agree[1][row]} by activations agree"
            )
        if found.boundary[row]:
            why.append(f"near a boundary: {agree[1][row]} of {k} neighbours by activations are of its class")
        if found.outliers[row]:
            why.append(
                f"unlike the database: typicality {found.typicality[row]:.2g}, the share of its rows that are further "
                "from their neighbours"
            )
        reasons.append("; ".join(why))
    return tuple(reasons)


def _auroc(scores: dict[str, Array], right: Flags, trusted: Flags) -> dict[str, float]:
    """By rows whose label is not suspected: a wrong label makes a right prediction look wrong."""
    right = right[trusted]
    if (~right).sum() < _FEWEST_ERRORS or not right.any():
        return {}
    from sklearn.metrics import roc_auc_score

    return {name: float(roc_auc_score(right, score[trusted])) for name, score in scores.items()}


def _show(label: Any) -> str:
    return repr(label.item() if hasattr(label, "item") else label)
