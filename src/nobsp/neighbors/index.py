"""An index of rows by the evidence their predictions rest on: who is near whom, and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from torch import Tensor

from nobsp import notebook
from nobsp._typing import AnyArray, ArrayLike, TableLike, TargetLike
from nobsp.arguments import (
    array_of,
    count,
    quote,
    require_choice,
    require_number,
    require_whole_number,
)
from nobsp.calibration.local import parse_bytes
from nobsp.neighbors.backends import Milvus, Usearch, indexed_spaces, load, make_backend, save
from nobsp.neighbors.duplicates import (
    Duplicates,
    alike_pairs,
    correlate,
    link_groups,
    near_pairs,
)
from nobsp.neighbors.evidence import (
    Outcomes,
    Rows,
    Task,
    classes_of_folders,
    comes_in_batches,
    find_evidence,
    find_outcomes,
    join_rows,
    label_array,
    remember_labels,
)
from nobsp.neighbors.influence import Influence, leave_out
from nobsp.neighbors.representers import RepresenterShares, share_out
from nobsp.neighbors.result import Neighbors, Prototypes
from nobsp.neighbors.search import (
    Evidence,
    Exact,
    Fitted,
    Kind,
    Metric,
    Space,
    fit_spaces,
    moments,
    pieces,
    spaced,
)
from nobsp.neighbors.selection import cover
from nobsp.network.evidence import EvidenceSource, Wanted
from nobsp.network.guest import keeps_torch_modes
from nobsp.serialization import damage_in_words

_CHOICES: dict[str, tuple[str, ...]] = {
    "space": ("contributions", "activations"),
    "target": ("query", "own"),
    "metric": ("euclidean", "cosine"),
    "task": ("auto", "classification", "regression"),
}
# What evidence is read for a space; with it come the spaces before.
_WANTED: dict[Kind, Wanted] = {"activations": "none", "own": "own", "query": "every"}
# Rows of a class among which prototypes are sought.
_MOST_MEMBERS = 4096


class ContributionIndex(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Finds the rows of a database whose predictions rest on similar evidence.

    Rows are compared by what each term (of a table) or channel (of an image) contributes to a
    class, or by the activations that enter the network's last layer. No labels are needed to query:
    the class is the predicted one.

    - `target="query"`: every row of the database by its evidence for the class predicted for the
      *query*. Like is compared with like, and a neighbour of another class is one that looks like
      this class to the network.
    - `target="own"`, as in the paper: every row by its evidence for the class predicted for *it*.
      That class is then written into the vectors, so that purity is high, and says little about
      whether a prediction is right.

    Vectors are z-scored with the mean and spread of the rows given to `fit`, and brought to unit
    length; distances are Euclidean. Rows that are added later are measured in the same units.

    Args:
        explainer: A fitted NObSP, a fitted NObSPCam, or the torch.nn.Linear that reads the
            activations to be passed as rows. A fitted NObSPCam also takes pooled activations, shape
            (rows, units), instead of images.
        space: "contributions" or "activations".
        target: "query" or "own"; see above.
        metric: "euclidean"; or "cosine", one minus the cosine similarity of contributions as they
            are, without z-scores (of activations: of their deviations from the mean).
        backend: "exact", in memory, compares with every row; "usearch", in memory or mapped from a
            file, walks a graph; "milvus" keeps rows in a local file or on a cluster. `Usearch(...)`
            and `Milvus(...)` have options.
        task: "classification" or "regression"; "auto" takes a model for a classifier if it has
            several outputs or a sigmoid, or if labels take exactly two values. A regression has
            neighbours but no purity.
        output: Which output of a regression with several.
        classes: Label of every class, where they are neither numbers from 0 nor the names of the
            outputs.
        device: Where the exact search works; the CPU when None.
        memory_limit: Most bytes of rows kept in memory, as a number or as "4GB" or "512MiB".

    Example:
        >>> import nobsp, torch
        >>> head, activations = torch.nn.Linear(8, 3), torch.randn(200, 8)
        >>> index = nobsp.ContributionIndex(head).fit(activations, head(activations).argmax(1))
        >>> hits = index.query(activations[:5], k=4)
        >>> hits.indices[:, 0], hits.purity.shape
        (array([0, 1, 2, 3, 4]), (5,))
    """

    def __init__(
        self,
        explainer: Any,
        *,
        space: Literal["contributions", "activations"] = "contributions",
        target: Literal["query", "own"] = "query",
        metric: Metric = "euclidean",
        backend: Literal["exact", "usearch", "milvus"] | Usearch | Milvus = "exact",
        task: Task | Literal["auto"] = "auto",
        output: int | str | None = None,
        classes: ArrayLike = None,
        device: torch.device | str | None = None,
        memory_limit: int | str = "4GiB",
    ) -> None:
        self.explainer = explainer
        self.space: Literal["contributions", "activations"] = space
        self.target: Literal["query", "own"] = target
        self.metric: Metric = metric
        self.backend = backend
        self.task = task
        self.output = output
        self.classes = classes
        self.device = device
        self.memory_limit = memory_limit

    @keeps_torch_modes
    def fit(
        self, X: TableLike, y: ArrayLike = None, *, labels: ArrayLike = None, progress: bool = False
    ) -> Self:
        """Makes a database of rows; a former one is replaced.

        The rows also fix the units in which vectors are measured.

        Args:
            X: Rows of any kind the explainer takes: arrays, tensors, frames, DataLoaders, iterables
                of batches, and files or a folder of images.
            y: The true label of every row: class numbers from 0, or names of outputs, or `classes`;
                values for a regression; 0 and 1 in one column per class, (rows, classes), where
                rows may have several. When None, batches (x, y) of a loader bring them, and so does
                a folder of images with one folder per class, named as the outputs (or, where these
                have no names, in their order); else there are none.
            labels: The same by another name.
            progress: Whether to show a progress bar on stderr.
        """
        self._validate()
        source = find_evidence(self.explainer)
        known_labels = _labels(X, y, labels)
        classes = self.classes
        if known_labels is None and classes is None:
            classes = classes_of_folders(X, source)
        outcomes = self._find_outcomes(source, known_labels, classes)
        if known_labels is None:
            known_labels = outcomes.labels_in(X)
        wanted = _WANTED[self._kind]
        thumbnails: list[Tensor | None] = []
        rows, labels_read = self._read_labelled(
            source,
            outcomes,
            X,
            known_labels,
            wanted=wanted,
            progress=progress,
            thumbnails=thumbnails,
        )
        if known_labels is None and labels_read is not None:
            before = outcomes.task
            outcomes = self._find_outcomes(source, labels_read, classes)
            if outcomes.task != before:
                raise ValueError(
                    'one output may be a logit or a value; pass task="classification" or '
                    '"regression".'
                )

        if labels_read is not None:
            rows = replace(rows, labels=outcomes.encode(labels_read, len(rows)))

        evidence = _evidence_of(source, outcomes, rows)
        kinds = list(_WANTED)
        if source.coefficients is None:
            kinds = kinds[: kinds.index(self._kind) + 1]
        spaces = fit_spaces(kinds, evidence, rows, outcomes.count)
        indexed = indexed_spaces(spaces, self._kind, self.metric)
        backend = make_backend(_backend_options(self.backend), indexed, rows, device=self.device)
        backend.add(rows)
        self._contents = Fitted(
            source=source,
            outcomes=outcomes,
            evidence=evidence,
            spaces=spaces,
            backend=backend,
            labelled=labels_read is not None,
            indexed=(self._kind, self.metric),
            thumbnail_batches=thumbnails,
        )
        return self

    def _find_outcomes(
        self, source: EvidenceSource, labels: AnyArray | None, classes: ArrayLike
    ) -> Outcomes:
        """Classes or a value, by the options and, where these leave it open, by the labels."""
        return find_outcomes(source, labels, task=self.task, output=self.output, classes=classes)

    @keeps_torch_modes
    def add(
        self, X: TableLike, y: ArrayLike = None, *, labels: ArrayLike = None, progress: bool = False
    ) -> Self:
        """Adds rows behind those that are there.

        The units in which vectors are measured stay those of `fit`.

        Args:
            X: Rows, as for `fit`.
            y: Their labels; needed if and only if the database has labels.
            labels: The same by another name.
            progress: Whether to show a progress bar on stderr.
        """
        fitted = self._fitted
        known_labels = _labels(X, y, labels)
        if known_labels is None and fitted.labelled:
            known_labels = fitted.outcomes.labels_in(X)
        held = fitted.backend.rows.bytes() if isinstance(fitted.backend, Exact) else 0
        thumbnails: list[Tensor | None] = []
        rows, labels_read = self._read_labelled(
            fitted.source,
            fitted.outcomes,
            X,
            known_labels,
            wanted=fitted.wanted,
            progress=progress,
            thumbnails=thumbnails,
            held=held,
        )
        if (labels_read is not None) != fitted.labelled:
            state = "has labels" if fitted.labelled else "has no labels"
            raise ValueError(
                f"labels must be passed for all rows or for none; the database {state}."
            )

        if labels_read is not None:
            rows = replace(rows, labels=fitted.outcomes.encode(labels_read, len(rows)))
        fitted.backend.add(rows)
        fitted.thumbnail_batches.extend(thumbnails)
        return self

    def __len__(self) -> int:
        return len(self._fitted.backend)

    @keeps_torch_modes
    def query(
        self, X: TableLike = None, k: int = 8, *, exclude: ArrayLike = None, progress: bool = False
    ) -> Neighbors:
        """The k rows of the database nearest to each row of `X`, nearest first.

        Rows at equal distances are in the order of their positions.

        Args:
            X: Rows, as for `fit`; None for the rows of the database themselves, each without
                itself.
            k: How many neighbours.
            exclude: Rows of the database to leave out: None for none; "self" where query i is row i
                of the database; positions, one per query or several as rows, −1 for none.
            progress: Whether to show a progress bar on stderr.
        """
        rows, leave = self._asked(X, exclude, progress=progress)
        return self._query_rows(rows, k, leave)

    def kneighbors(
        self, X: TableLike = None, n_neighbors: int = 8, return_distance: bool = True
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]] | NDArray[np.int64]:
        """The same as `query`, as scikit-learn returns it: distances and positions.

        Without `return_distance` it is positions alone.
        """
        hits = self.query(X, n_neighbors)
        return (hits.distances, hits.indices) if return_distance else hits.indices

    def _asked(
        self, X: TableLike, exclude: ArrayLike, *, progress: bool
    ) -> tuple[Rows, Tensor | None]:
        """Rows that are asked about, and which rows of the database each leaves out.

        Where `X` is None, they are the rows of the database, each without itself.
        """
        if X is None:
            rows = self._fitted.backend.take(torch.arange(len(self)))
            exclude = "self" if exclude is None else exclude
        else:
            rows = self._read(X, progress=progress)
        return rows, _positions_to_leave(exclude, len(rows), len(self))

    def _query_rows(self, queries: Rows, k: int, leave: Tensor | None = None) -> Neighbors:
        """Neighbours of rows that were read already: no forward pass."""
        self._validate()
        fitted = self._fitted
        outcomes = self._fitted.outcomes
        require_whole_number("k", k)
        spared = most_left_out(leave)
        if k > len(self) - spared:
            less = ", less those excluded" if spared else ""
            raise ValueError(f"k is {k}, but the database has {len(self)} rows{less}.")

        walked = fitted.space("activations" if self._kind == "query" else self._kind, self.metric)
        positions, distances = fitted.backend.nearest(
            self._space, queries, int(k), leave, walked=walked
        )
        labels = None
        residuals = None
        regression = outcomes.classes is None
        if fitted.labelled:
            near = fitted.backend.take(positions.flatten())
            labels = outcomes.decode(near.truth)
            labels = labels.reshape(*positions.shape, *labels.shape[1:])
            if regression:
                residuals = labels - near.response.numpy().reshape(positions.shape)

        predicted = outcomes.decode(queries.predicted)
        confidence = queries.response.numpy().copy()
        if regression:
            predicted = confidence
            confidence = np.full(len(queries), np.nan)

        return Neighbors(
            indices=positions.numpy(),
            distances=distances.numpy(),
            labels=labels,
            predicted=predicted,
            confidence=confidence,
            space=self.space,
            target=self.target,
            classes=outcomes.classes,
            residuals=residuals,
        )

    def _read(self, X: TableLike, *, progress: bool = False) -> Rows:
        """What the model shows of rows.

        Several queries about the same rows then need only one forward pass.
        """
        fitted = self._fitted
        wanted = self._fitted.wanted
        batches = fitted.source.read(X, wanted=wanted, progress=progress)
        return join_rows([fitted.outcomes.rows(batch, wanted=wanted) for batch in batches])

    def _read_images(self, X: TableLike) -> tuple[Rows, Tensor | None]:
        """What the model shows of rows, and their thumbnails where all are images."""
        wanted = self._fitted.wanted
        parts = []
        thumbnails = []
        for batch in self._fitted.source.read(X, wanted=wanted, progress=False):
            parts.append(self._fitted.outcomes.rows(batch, wanted=wanted))
            thumbnails.append(batch.thumbnails)
        images = [part for part in thumbnails if part is not None]
        is_complete = len(images) == len(thumbnails)
        return join_rows(parts), torch.cat(images) if is_complete else None

    def _view(self, **options: Any) -> ContributionIndex:
        """The same database with another space, target or metric; rows are shared."""
        other = copy(self)
        other.set_params(**options)
        other._validate()
        other._fitted.space(
            other._kind, other.metric
        )  # an error now rather than at the first query
        return other

    @keeps_torch_modes
    def prototypes(self, per_class: int = 3) -> Prototypes:
        """Rows that stand for each class.

        Together they are as similar as possible to all rows with the class's label.

        They are chosen among the rows that are labelled with a class and predicted as it, compared
        in the index's space by evidence for that class. Of more than 4,096 such rows, as many
        evenly spaced ones are compared.

        Args:
            per_class: How many for each class; fewer where it has fewer rows.
        """
        require_whole_number("per_class", per_class)
        fitted = self._fitted
        classes = fitted.outcomes.classes
        if classes is None or not fitted.labelled:
            raise ValueError(
                "prototypes stand for classes; they need a classifier, and labels of the database."
            )

        codes = self._right_classes()
        parts = []
        for number in np.unique(codes[codes >= 0]).tolist():
            members = torch.nonzero(codes == number)[:, 0]
            members = members[spaced(len(members), _MOST_MEMBERS)]
            vectors = self._space.vectors(fitted.backend.take(members)).to(torch.float32)
            chosen = cover(vectors, int(per_class))
            parts.append(
                Prototypes(
                    indices=members[chosen.positions].numpy(),
                    labels=np.repeat(classes[number : number + 1], len(chosen.positions)),
                    shares=chosen.shares.double().numpy(),
                    similarity=chosen.similarity.double().numpy(),
                    criticisms=members[chosen.criticisms].numpy(),
                )
            )

        if not parts:
            raise ValueError(
                "no row of the database is predicted as its label says, so none stands for its "
                "class."
            )

        return Prototypes(
            indices=np.concatenate([part.indices for part in parts]),
            labels=np.concatenate([part.labels for part in parts]),
            shares=np.concatenate([part.shares for part in parts]),
            similarity=np.concatenate([part.similarity for part in parts]),
            criticisms=np.concatenate([part.criticisms for part in parts]),
        )

    def _right_classes(self) -> Tensor:
        """The class of every row that is predicted as it is labelled; −1 for others."""
        fitted = self._fitted
        parts = []
        for piece in pieces(len(self), self._space.width):
            rows = fitted.backend.take(torch.arange(piece.start, piece.stop))
            if fitted.outcomes.several:
                is_right = rows.truth[torch.arange(len(rows)), rows.predicted] > 0
            else:
                is_right = rows.truth == rows.predicted
            parts.append(torch.where(is_right, rows.predicted, -1))
        return torch.cat(parts)

    @keeps_torch_modes
    def duplicates(self, threshold: float = 0.1, *, k: int = 8, X: TableLike = None) -> Duplicates:
        """Rows that are nearly the same: to the network, or as images.

        Rows are the same to the network where they are nearer than a threshold in activation space.
        Images are also compared by their pixels, as grey copies of 32 × 32: those that differ by a
        shift by a pixel, noise, brightness or contrast are found. An index that was loaded from a
        file has no copies, and neither has one of activations. With rows of a test set as `X`, the
        pairs are leaks: a test row and the row of the database that it repeats.

        Args:
            threshold: Largest distance of a pair. Unrelated vectors are about 1.4 from each other,
                equal ones 0.
            k: How many neighbours of each row are compared. Rows of larger groups are still linked
                with one another, though not each with each.
            X: Other rows, to be compared with those of the database; None for these among
                themselves.
        """
        require_number("threshold", threshold, least=0, below=2)
        require_whole_number("k", k)
        fitted = self._fitted
        own = X is None
        if own and len(self) == 1:  # which has no others
            no_groups = np.empty(0, bool) if fitted.labelled else None
            return Duplicates(np.empty((0, 2), np.int64), np.empty(0), (), no_groups)

        database = fitted.thumbnails
        if own:
            rows, leave = self._asked(None, None, progress=False)
            thumbnails = database
        else:
            rows, thumbnails = self._read_images(X)
            leave = None
        view = self._view(space="activations")
        hits = view._query_rows(rows, min(int(k), len(self) - own), leave)

        pairs = near_pairs(hits, float(threshold))
        has_images = database is not None and thumbnails is not None
        if database is not None and thumbnails is not None:
            alike = alike_pairs(thumbnails, database, hits.indices, own=own)
            pairs = np.concatenate([pairs, alike])
        pairs = np.unique(np.sort(pairs, axis=1) if own else pairs, axis=0)
        distances = view._pair_distances(rows, pairs)

        order = np.argsort(distances, kind="stable")
        pairs = pairs[order]
        correlations = None
        if has_images:
            assert database is not None
            assert thumbnails is not None
            correlations = correlate(thumbnails, database, pairs)
        groups = link_groups(pairs, len(self)) if own else ()
        conflicting = self._conflicting(groups) if own and fitted.labelled else None
        return Duplicates(pairs, distances[order], groups, conflicting, correlations)

    def _pair_distances(self, rows: Rows, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Distances of rows to rows of the database, pair by pair."""
        distances = np.empty(len(pairs))
        for piece in pieces(len(pairs), self._space.width):
            first = self._space.vectors(rows.take(torch.from_numpy(pairs[piece, 0])))
            others = self._fitted.backend.take(torch.from_numpy(pairs[piece, 1]))
            second = self._space.vectors(others)
            apart = (first - second).square().sum(1).sqrt()
            if self.metric == "cosine":
                apart = 1 - (first * second).sum(1)
            distances[piece] = apart.numpy()
        return distances

    def _conflicting(self, groups: Sequence[NDArray[np.int64]]) -> NDArray[np.bool_]:
        """Whether the labels in each group differ."""
        flags = []
        for group in groups:
            labels = self._fitted.backend.take(torch.from_numpy(group)).truth
            flags.append(bool((labels != labels[0]).any()))
        return np.array(flags, dtype=bool)

    @keeps_torch_modes
    def influence(
        self,
        X: TableLike,
        *,
        target: TargetLike = None,
        k: int | None = None,
        sample_weight: ArrayLike = None,
    ) -> Influence:
        """How a class's logit of other rows would change without each row of the database.

        Without a row means that the model had not been trained on it.

        Needs a linear head that was trained on the rows and labels of the database until it
        converged, by softmax, sigmoid or least squares, with any weight decay. Another head is an
        error.

        Args:
            X: Rows, as for `query`.
            target: The class, for all rows or one each; the predicted one when None.
            k: Only the k rows that speak most for the class and the k most against it; all rows
                when None.
            sample_weight: How much each row of the database counted in training; all alike when
                None.

        Example:
            >>> import nobsp, torch
            >>> from sklearn.linear_model import LogisticRegression
            >>> _ = torch.manual_seed(0)
            >>> rows = torch.randn(60, 4)
            >>> labels = (rows[:, 0] + torch.randn(60) > 0).long()
            >>> trained = LogisticRegression(tol=1e-8).fit(rows, labels)
            >>> head = torch.nn.Linear(4, 1)
            >>> head.weight.data = torch.from_numpy(trained.coef_).float()
            >>> head.bias.data = torch.from_numpy(trained.intercept_).float()
            >>> index = nobsp.ContributionIndex(head, task="classification").fit(rows, labels)
            >>> influence = index.influence(rows[:3])
            >>> influence.values.shape, influence.loss, round(influence.weight_decay, 2)
            ((3, 60), 'sigmoid', 1.0)
        """
        if k is not None:
            require_whole_number("k", k)
        return leave_out(self._fitted, self._read(X), target, k, sample_weight)

    @keeps_torch_modes
    def representer_shares(
        self, X: TableLike, *, target: TargetLike = None, k: int | None = None
    ) -> RepresenterShares:
        """A class's logit of other rows shared out among the rows of the database, adding up to it.

        Needs a linear head that reads the activations, and labels of the database. It says what the
        logit is made of; `influence` says what would change without a row.

        Args:
            X: Rows, as for `query`.
            target: The class, for all rows or one each; the predicted one when None.
            k: Only the k rows that add most for the class and the k most against it; all rows when
                None.

        Example:
            >>> import nobsp, torch
            >>> head, rows = torch.nn.Linear(4, 2), torch.randn(50, 4)
            >>> index = nobsp.ContributionIndex(head).fit(rows, torch.arange(50) % 2)
            >>> shares = index.representer_shares(rows[:3])
            >>> total = shares.base + shares.values.sum(1)
            >>> shares.values.shape, bool(abs(total - shares.logits).max() < 1e-6)
            ((3, 50), True)
        """
        if k is not None:
            require_whole_number("k", k)
        return share_out(self._fitted, self._read(X), target, k)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the index, without its explainer, to one safetensors file.

        Rows that are in Milvus stay there.

        Args:
            path: Where to; an existing file is replaced; processes that have it open keep the
                former one.
        """
        names = ("space", "target", "metric", "task", "output", "memory_limit")
        save(path, self._fitted, {name: getattr(self, name) for name in names})

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        explainer: Any,
        *,
        backend: Literal["exact", "usearch"] | Usearch | Milvus | None = None,
        device: torch.device | str | None = None,
    ) -> Self:
        """Reads an index that `save` wrote.

        The file is mapped into memory, not read, so that several processes can share it.

        Args:
            path: The file.
            explainer: The very explainer the index was made with; another one is an error.
            backend: Another backend for the same rows; for rows in Milvus where they are,
                `Milvus(uri=..., token=...)`: a file alone never makes this process connect.
            device: Where the exact search works.
        """
        other = None if backend is None else _backend_options(backend) or "exact"
        evidence = find_evidence(explainer)
        fitted, options, used = load(path, evidence, backend=other, device=device)
        index = cls(explainer, backend="exact" if used is None else used, device=device, **options)
        with damage_in_words(path):
            index._validate()
        index.classes = fitted.outcomes.classes
        index._contents = fitted
        return index

    def close(self) -> None:
        """Closes a Milvus connection.

        It also closes a local file, which one process at a time can have open.
        """
        self._fitted.backend.close()

    @property
    def _kind(self) -> Kind:
        return "activations" if self.space == "activations" else self.target

    @property
    def _space(self) -> Space:
        return self._fitted.space(self._kind, self.metric)

    @property
    def _fitted(self) -> Fitted:
        """The contents, or a NotFittedError where there are none yet."""
        if not hasattr(self, "_contents"):
            raise NotFittedError(
                "This ContributionIndex has no rows yet; call fit(X, labels) first."
            )
        return self._contents

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_contents")

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__} of {type(self.explainer).__name__}"
        if not hasattr(self, "_contents"):
            return notebook.card(title, notebook.line("No rows yet: call fit with rows."))
        labels = "with labels" if self._contents.labelled else "without labels"
        rows = f"{count(len(self), 'row')} {labels}, compared by {self.space}"
        return notebook.card(title, notebook.line(rows))

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, str]:
        # scikit-learn would draw a diagram of nested estimators, which an index is not.
        return {"text/plain": repr(self), "text/html": self._repr_html_()}

    def __sklearn_clone__(self) -> ContributionIndex:
        # scikit-learn would copy the explainer, and with it lose its calibration.
        return type(self)(**self.get_params(deep=False))

    def _validate(self) -> None:
        """Options are checked when they are used, as `set_params` may have changed them."""
        for name, choices in _CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        _backend_options(self.backend)

    def _read_labelled(
        self,
        source: EvidenceSource,
        outcomes: Outcomes,
        X: TableLike,
        labels: AnyArray | None,
        *,
        wanted: Wanted,
        progress: bool,
        thumbnails: list[Tensor | None],
        held: int = 0,
    ) -> tuple[Rows, AnyArray | None]:
        """Rows to be kept and their labels, those given or those that come with the batches.

        Thumbnails of each batch are put into `thumbnails`.
        """
        batch_labels: list[AnyArray | None] = []
        batches = remember_labels(X, batch_labels) if labels is None and comes_in_batches(X) else X
        limit = parse_bytes(self.memory_limit, argument="memory_limit")
        parts = []
        for batch in source.read(batches, wanted=wanted, progress=progress):
            part = outcomes.rows(batch, wanted=wanted)
            if source.head is not None:  # its logits follow from the activations
                part = replace(part, logits=None)
            held += part.bytes()
            if held > limit:
                raise _too_large(part, held, limit)
            parts.append(part)
            thumbnails.append(batch.thumbnails)

        rows = join_rows(parts)
        known = [batch_label for batch_label in batch_labels if batch_label is not None]
        if 0 < len(known) < len(batch_labels):
            missing = len(batch_labels) - len(known)
            raise ValueError(
                f"{missing} batches of X have no labels while others have; give all of them labels."
            )

        labels = np.concatenate(known) if known else labels
        if labels is not None and len(labels) != len(rows):
            raise ValueError(f"labels has {len(labels)} entries for {len(rows)} rows.")

        return rows, labels


def _evidence_of(source: EvidenceSource, outcomes: Outcomes, rows: Rows) -> Evidence:
    """Coefficients of evidence that is a multiple of the activations.

    There are none where evidence is kept row by row.
    """
    if source.coefficients is None:
        return Evidence()
    mean = source.mean
    if mean is None:
        mean, _ = moments(rows, lambda part: part.activations.to(torch.float64))
    return Evidence(outcomes.per_class(source.coefficients).T.contiguous(), mean)


def _labels(X: TableLike, y: ArrayLike, labels: ArrayLike) -> AnyArray | None:
    """Labels by either of their names, one per row; None without any.

    Their number is checked where rows can be counted before they are read.
    """
    if y is not None and labels is not None:
        raise ValueError("y and labels are two names for the same; pass one of them.")
    values = y if labels is None else labels
    if values is None:
        return None
    if isinstance(values, type) or not hasattr(values, "__len__"):
        raise TypeError(f"labels (or y) must be one label for each row, found {quote(values)}.")
    return label_array(
        values, int(X.shape[0]) if hasattr(X, "shape") else len(values), columns=None
    )


def _too_large(part: Rows, held: int, limit: int) -> ValueError:
    """An error about rows that take more memory than they may, with what would take less."""
    advice = "pass a larger one"
    if part.evidence is not None and part.evidence.shape[1] > 1:
        classes = part.evidence.shape[1]
        advice = (
            f'keep evidence for one class instead of {classes} with target="own", or a larger limit'
        )
    count = held * len(part) // part.bytes()
    return ValueError(f"memory_limit is {limit:,} bytes, and {count:,} rows take more; {advice}.")


def _backend_options(backend: Any) -> Usearch | Milvus | None:
    """Options of a backend; None for the exact one."""
    known = {"exact": None, "usearch": Usearch(), "milvus": Milvus()}
    if isinstance(backend, Usearch | Milvus):
        return backend
    if not isinstance(backend, str) or backend not in known:
        known_ones = ", ".join(f'"{name}"' for name in known)
        raise ValueError(
            f"backend must be {known_ones}, Usearch(...) or Milvus(...), found {backend!r}."
        )
    return known[backend]


def _positions_to_leave(exclude: ArrayLike, queries: int, rows: int) -> Tensor | None:
    """Rows of the database that each query leaves out, shape (queries, any); −1 for none."""
    if exclude is None:
        return None
    if isinstance(exclude, str):
        if exclude != "self":
            raise ValueError(
                f'exclude must be None, "self", or positions in the database, found {exclude!r}.'
            )
        if queries != rows:
            raise ValueError(
                'exclude="self" says that query i is row i of the database, but there are '
                f"{queries} queries and "
                f"{rows} rows; pass the position of each query."
            )
        return torch.arange(rows)[:, None]

    positions = array_of(exclude, name="exclude")
    shaped = positions.dtype.kind in "iu" and positions.ndim in (1, 2) and len(positions) == queries
    if not shaped or (positions.size and (positions.min() < -1 or positions.max() >= rows)):
        about = (
            f"{positions.min()} to {positions.max()}"
            if shaped
            else f"{positions.dtype} of shape {positions.shape}"
        )
        wanted = (
            f"positions from 0 to {rows - 1}, or −1, one or one row of them for each of the "
            f"{queries} queries"
        )
        raise ValueError(f"exclude must hold {wanted}, found {about}.")

    return torch.from_numpy(positions.astype(np.int64).reshape(queries, -1))


def most_left_out(leave: Tensor | None) -> int:
    """Rows that the query with the most of them leaves out."""
    return 0 if leave is None else int((leave >= 0).sum(1).max())
