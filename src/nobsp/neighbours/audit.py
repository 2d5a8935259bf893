"""Auditing predictions and labels by their neighbours: likely errors, mislabels, boundary cases and outliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nobsp.neighbours.centroids import centroids_of
from nobsp.neighbours.database import Fitted
from nobsp.neighbours.evidence import Rows
from nobsp.neighbours.hits import Neighbours
from nobsp.neighbours.index import ContributionIndex, most_left_out, positions_to_leave, require_count
from nobsp.neighbours.joint import JointConfidence, cross_validated, fixed_rule, joint_features
from nobsp.neighbours.votes import VOTERS, opinion
from nobsp.tabular.explanation import frame_like

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Activation purity of a boundary case, as in the paper.
BOUNDARY = (0.4, 0.7)


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
        agreed: Probability of the predicted class when the softmax and a vote of 50 neighbours are both heard.
        centroid_distance: Distance to the centre of the predicted class, in activation space.
        errors: Whether the joint confidence is below one half.
        boundary: Whether the activation purity is that of a boundary case.
        outliers: Whether the centre of the predicted class is further than from 95% of its own rows.
        mislabels: Whether the label is suspected to be wrong; None without labels.
        label_support: What the vote of neighbours and the centres of the classes give to the label, from 0 to 1: the
            less, the more suspicious; None without labels.
        suggested: The class that they give most to.
        reasons: In words, why a row was flagged; empty for others.
        signals: What the joint confidence is made of, by name.
        joint_model: The joint confidence as something to judge other rows with; None for the fixed rule.
        auroc: How well each signal tells right from wrong predictions, where labels were given.
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
    centroid_distance: Array
    errors: Flags
    boundary: Flags
    outliers: Flags
    mislabels: Flags | None
    label_support: Array | None
    suggested: NDArray[Any]
    reasons: tuple[str, ...]
    signals: dict[str, Array]
    joint_model: JointConfidence | None
    auroc: dict[str, float]
    by_contributions: Neighbours
    by_activations: Neighbours

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def flagged(self) -> NDArray[np.int64]:
        """Positions of all rows with a reason, least joint confidence first."""
        positions = np.flatnonzero([bool(reason) for reason in self.reasons])
        return positions[np.argsort(self.joint[positions], kind="stable")]

    def to_frame(self) -> Any:
        """One line per row, as a pandas frame, or a polars one where pandas is missing."""
        columns: dict[str, Any] = {"row": self.rows, "predicted": self.predicted}
        if self.labels is not None:
            columns["label"] = self.labels
        columns |= {
            "confidence": self.confidence,
            "purity_contributions": self.purity_contributions,
            "purity_activations": self.purity_activations,
            "joint": self.joint,
            "centroid_distance": self.centroid_distance,
            "error": self.errors,
            "boundary": self.boundary,
            "outlier": self.outliers,
        }
        if self.mislabels is not None and self.label_support is not None:
            columns |= {"mislabel": self.mislabels, "label_support": self.label_support}
        columns |= {"suggested": self.suggested, "reason": np.array(self.reasons, dtype=object)}
        return frame_like(None, {name: list(v) if v.dtype == object else v for name, v in columns.items()})

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
            f"  outliers (centroid distance beyond the 95th percentile): {self.outliers.sum()}",
        ]
        if self.mislabels is not None:
            lines.append(f"  suspected mislabels (neighbours and centres speak against them): {self.mislabels.sum()}")
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
    joint: JointConfidence | None = None,
    progress: bool = False,
) -> Audit:
    """Looks at predictions through their neighbours, in both spaces at once, with one forward pass over the rows.

    - *Likely errors*: the joint confidence is below one half. It combines the softmax with a vote of the 50 nearest
      rows by activations, and with how near the neighbours by evidence are. With labels it is a logistic regression,
      each row judged by one that was fitted without it; pass `joint` to judge by a regression fitted before, on other
      rows; with neither, it is `agreed`: the softmax times the vote, brought to sum to one.
    - *Boundary cases*: activation purity from 0.4 to 0.7.
    - *Outliers*: rows further from the centre of their predicted class than 95% of that class's rows in the database.
    - *Suspected mislabels*: vote and class centres together give the label less than half of what chance would, and in
      neither space more of the neighbours have the label than have the class suggested instead.

    Args:
        index: A fitted index with labels; its own space, metric and target are those of the contributions.
        X: Rows to audit, as for `query`; None for the database itself, each row without itself.
        labels: Their labels; None for those of the database where that itself is audited, and else for none.
        k: Neighbours that purity is counted among.
        exclude: Rows of the database that are no neighbours, as for `query`; needed where rows of `X` are in it.
        joint: A joint confidence fitted before: `joint_model` of another audit.
        progress: Whether to show a progress bar on stderr.

    Returns:
        What was found.

    Raises:
        ValueError: If the model is a regression, the database has no labels, or the index keeps activations only.

    Example:
        >>> import torch
        >>> from nobsp.neighbours import ContributionIndex, audit
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
    require_count("k", k)
    if not isinstance(index, ContributionIndex):
        raise TypeError(
            f"index must be a ContributionIndex, found {type(index).__name__}; make one with "
            "nobsp.ContributionIndex(explainer).fit(X, labels)."
        )
    fitted = index._fitted
    classes = fitted.outcomes.classes
    if classes is None:
        raise ValueError("an audit judges predicted classes, and a regression has none; use index.query(X) instead.")
    if not fitted.labelled:
        raise ValueError("an audit needs the labels of the database; pass labels to index.fit.")
    index.view(space="contributions")  # an error where only activations are kept, before anything is read
    if X is None:
        asked = fitted.backend.take(torch.arange(len(index)))
        exclude = "self" if exclude is None else exclude
        if labels is None:
            assert asked.labels is not None
            labels = fitted.outcomes.decoded(asked.labels)
    else:
        asked = index.see(X, progress=progress)
    outcomes = fitted.outcomes
    codes = None if labels is None else outcomes.encoded(labels, len(asked))
    leave = positions_to_leave(exclude, len(asked), len(index))
    by_evidence = index.view(space="contributions").ask(asked, k, exclude=leave)
    voters = max(k, min(VOTERS, len(index) - most_left_out(leave)))
    nearby = index.view(space="activations").ask(asked, voters, exclude=leave)
    by_activations = nearby.nearest(k)
    centroids = fitted.about_rows(
        "centroids",
        lambda: centroids_of(fitted.space("activations", "euclidean"), fitted.backend.take, len(index), len(classes)),
    )
    thought = opinion(
        centroids, asked, outcomes.log_chances(_logits(fitted, asked)), nearby.indices, labels=codes, leave=leave
    )
    signals = joint_features(thought, by_evidence)
    agreed = fixed_rule(thought)
    right = None if codes is None else asked.predicted.numpy() == codes.numpy()
    chance, kind, model = _judged(signals, agreed, right, joint)
    found = _Found(
        few=(by_evidence, by_activations),
        labels=None if codes is None else outcomes.decoded(codes),
        suggested=outcomes.decoded(torch.from_numpy(thought.suggested)),
        support=thought.support,
        joint=chance,
        away=centroids.distances(asked, leave),
        usual=centroids.usual[asked.predicted.numpy()],
    )
    scores = {
        "confidence": asked.response.numpy().copy(),
        "purity by evidence": by_evidence.purity,
        "purity by activations": by_activations.purity,
        "joint": chance,
    }
    return Audit(
        rows=np.arange(len(asked)),
        predicted=by_evidence.predicted,
        labels=found.labels,
        confidence=scores["confidence"],
        purity_contributions=scores["purity by evidence"],
        purity_activations=scores["purity by activations"],
        joint=chance,
        joint_kind=kind,
        agreed=agreed,
        centroid_distance=found.away,
        errors=found.errors,
        boundary=found.boundary,
        outliers=found.outliers,
        mislabels=found.mislabels,
        label_support=thought.support,
        suggested=found.suggested,
        reasons=found.reasons(),
        signals=signals,
        joint_model=model,
        auroc={} if right is None else _auroc(scores, right),
        by_contributions=by_evidence,
        by_activations=by_activations,
    )


def _logits(fitted: Fitted, asked: Rows) -> Tensor:
    """Logits per class, of queries as they were read, of rows of the database from their activations."""
    if asked.logits is not None:
        return asked.logits
    found = fitted.source.logits(asked.activations)
    if found is None:
        raise ValueError(
            "layers stand between map and head, so the database does not know the logits of its own rows; pass the "
            'rows again: audit(index, X, labels, exclude="self").'
        )
    return fitted.outcomes.per_class(found)


class _Found:
    """What neighbours and centres say of each row, and in words."""

    def __init__(
        self,
        *,
        few: tuple[Neighbours, Neighbours],
        labels: NDArray[Any] | None,
        suggested: NDArray[Any],
        support: Array | None,
        joint: Array,
        away: Array,
        usual: Array,
    ) -> None:
        self.few, self.labels, self.suggested = few, labels, suggested
        self.joint, self.away, self.usual = joint, away, usual
        self.purities = few[0].purity, few[1].purity
        self.errors = joint < 0.5
        low, high = BOUNDARY
        self.boundary = (self.purities[1] >= low) & (self.purities[1] <= high)
        self.outliers = away > usual
        self.shares = few[0].purity_towards(suggested), few[1].purity_towards(suggested)
        self.mislabels: Flags | None = None
        if labels is not None and support is not None:
            classes = few[0].classes
            assert classes is not None
            chance = 1 / len(classes)
            agree = [share >= hits.purity_towards(labels) for share, hits in zip(self.shares, few, strict=True)]
            self.mislabels = (support < chance / 2) & (suggested != labels) & agree[0] & agree[1]

    def reasons(self) -> tuple[str, ...]:
        k = self.few[0].k
        counts = [np.rint(share * k).astype(int) for share in (*self.purities, *self.shares)]
        said: list[str] = []
        for row in range(len(self.joint)):
            by_evidence, by_activations, for_other, for_other_activations = (count[row] for count in counts)
            why = []
            if self.mislabels is not None and self.labels is not None and self.mislabels[row]:
                why.append(
                    f"labelled {_written(self.labels[row])}, but {for_other} of {k} neighbours by evidence and "
                    f"{for_other_activations} by activations are {_written(self.suggested[row])}"
                )
            if self.errors[row]:
                why.append(
                    f"predicted {_written(self.few[0].predicted[row])} with joint confidence {self.joint[row]:.2f}: "
                    f"{by_evidence} of {k} neighbours by evidence and {by_activations} by activations agree"
                )
            if self.boundary[row]:
                why.append(f"near a boundary: {by_activations} of {k} neighbours by activations are of its class")
            if self.outliers[row]:
                why.append(
                    f"unlike its class: {self.away[row]:.2f} from its centre, which 95% of the class are within "
                    f"{self.usual[row]:.2f} of"
                )
            said.append("; ".join(why))
        return tuple(said)


def _judged(
    signals: dict[str, Array], agreed: Array, right: Flags | None, joint: JointConfidence | None
) -> tuple[Array, Literal["cross-validated", "given", "fixed"], JointConfidence | None]:
    if joint is not None:
        return joint(signals), "given", joint
    if right is not None:
        chance = cross_validated(signals, right)
        if chance is not None:
            return chance, "cross-validated", JointConfidence.fitted(signals, right)
    return agreed, "fixed", None


def _auroc(scores: dict[str, Array], right: Flags) -> dict[str, float]:
    if right.all() or not right.any():
        return {}
    from sklearn.metrics import roc_auc_score

    return {name: float(roc_auc_score(right, score)) for name, score in scores.items()}


def _written(label: Any) -> str:
    return repr(label.item() if hasattr(label, "item") else label)
