"""Rows as an index keeps them: their origin, what the outputs stand for, and their labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from nobsp._typing import AnyArray, ArrayLike, TableLike
from nobsp.arguments import array_of, number_outputs, quote
from nobsp.network.evidence import (
    EvidenceBatch,
    EvidenceSource,
    Wanted,
    read_activations,
    sign_coefficients,
)
from nobsp.network.readout import Head
from nobsp.tabular import Functions, NObSP
from nobsp.tabular.indexing import output_position
from nobsp.vision import NObSPCam
from nobsp.vision.pictures import is_path, picture_files

Task = Literal["classification", "regression"]

# Under which names dictionaries of a loader carry their labels.
_LABEL_KEYS = ("labels", "label", "y", "targets", "target")


def find_evidence(explainer: Any) -> EvidenceSource:
    """What a fitted NObSP or NObSPCam, or a linear head on given activations, shows of rows."""
    if isinstance(explainer, NObSP | NObSPCam):
        return explainer.evidence_source()
    if isinstance(explainer, nn.Linear):
        head = Head.of(explainer, "head")
        weight = head.weight
        bias = head.bias
        return EvidenceSource(
            output_names=number_outputs(len(weight)),
            link="identity",
            about=f"head {tuple(weight.shape)}",
            # its weights are in the signature, and there is nothing else to the model
            hash_model=str,
            signature=sign_coefficients(weight.T, bias),
            read=partial(read_activations, weight=weight, bias=bias),
            head=(weight, bias),
            coefficients=weight.T,
        )

    hint = (
        " Make NObSP(model) or NObSPCam(model) and fit it first."
        if isinstance(explainer, nn.Module)
        else ""
    )
    if isinstance(explainer, Functions):
        hint = (
            " It is compiled: it has no network, and knows no activations; pass the NObSP it was "
            "compiled from."
        )
    raise TypeError(
        "explainer must be a fitted NObSP, a fitted NObSPCam, or the torch.nn.Linear that reads "
        f"the activations passed as X; found {type(explainer).__name__}.{hint}"
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as an index keeps them, in single precision where there is much.

    Queries are rounded alike, so that a row found again is at distance 0.
    """

    activations: Tensor  # what enters the head, or the pooled channels, (rows, width), float32
    # (rows, classes or 1, terms), float32; None where it is a multiple of the activations
    evidence: Tensor | None
    predicted: Tensor  # number of the predicted class; zero throughout for a regression
    response: Tensor  # confidence in the predicted class; for a regression the predicted value
    # class numbers; values of a regression; or 0 and 1 for each class, (rows, classes)
    labels: Tensor | None = None
    # of every class, float64; of queries, and of a database where they do not follow from its
    # activations
    logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self.activations)

    @property
    def truth(self) -> Tensor:
        """The labels, of rows that have them."""
        assert self.labels is not None
        return self.labels

    def bytes(self) -> int:
        """Memory of activations, evidence and logits."""
        large = (self.activations, self.evidence, self.logits)
        return sum(tensor.numel() * tensor.element_size() for tensor in large if tensor is not None)

    def take(self, positions: Tensor | slice) -> Rows:
        """Some of the rows."""
        some: dict[str, Any] = {
            name: None if value is None else value[positions] for name, value in vars(self).items()
        }
        return Rows(**some)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Rows of several batches one after another."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    whole: list[Any] = [None if some[0] is None else torch.cat(some) for some in columns]
    return Rows(*whole)


@dataclass(frozen=True, eq=False)
class Outcomes:
    """What the outputs stand for: classes, or the one output of a regression.

    A single logit is written as two classes, −l/2 and l/2, whose softmax is its sigmoid: whatever
    follows knows only models with a logit per class.
    """

    task: Task
    outputs: int
    output: int  # which of them a regression is about
    sigmoid: bool  # whether every class has a probability of its own
    classes: AnyArray | None  # label of every class; None for a regression
    # whether a row may have several classes: labels are 0 and 1 for each, (rows, classes)
    several: bool = False

    @property
    def count(self) -> int:
        """How many classes there are; one for a regression."""
        return 1 if self.classes is None else len(self.classes)

    def per_class(self, values: Tensor) -> Tensor:
        """Values per output (..., outputs) as values per class (..., classes)."""
        if self.task == "regression":
            return values[..., self.output : self.output + 1]
        return torch.cat([-values / 2, values / 2], dim=-1) if self.outputs == 1 else values

    def rows(self, batch: EvidenceBatch, *, wanted: Wanted) -> Rows:
        """A batch as rows of an index, in their precision."""
        logits = self.per_class(batch.logits)
        predicted = logits.argmax(1)
        evidence = batch.evidence
        if evidence is not None:
            if evidence.shape[1] == batch.logits.shape[1]:
                evidence = self.per_class(evidence.transpose(1, 2)).transpose(1, 2)
            if wanted == "own" and evidence.shape[1] > 1:
                evidence = evidence[torch.arange(len(evidence)), predicted][:, None]
            evidence = evidence.to(torch.float32).contiguous()
        response = (
            logits[:, 0]
            if self.task == "regression"
            else self.log_probabilities(logits).exp().amax(1)
        )
        return Rows(
            batch.activations.to(torch.float32), evidence, predicted, response, logits=logits
        )

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """Logarithms of the classes' probabilities.

        These sum to one unless each class has a sigmoid of its own.
        """
        return torch.nn.functional.logsigmoid(logits) if self.sigmoid else logits.log_softmax(1)

    def encode(self, labels: ArrayLike, count: int, *, argument: str = "labels") -> Tensor:
        """Labels as class numbers, or as values for a regression."""
        columns = self.count if self.several else 1
        values = label_array(labels, count, argument=argument, columns=columns)
        if self.several:
            return torch.from_numpy(values.astype(np.int64))
        if self.classes is None:
            if values.dtype.kind not in "fiub":
                raise TypeError(
                    f"{argument} of a regression must be numbers, found {values.dtype}."
                )
            return torch.from_numpy(values.astype(np.float64))

        advice = (
            "pass class numbers from 0, the names of the outputs, or classes=[...] with the label "
            "of every class."
        )
        if (values.dtype.kind in "US") != (self.classes.dtype.kind in "US"):
            raise TypeError(
                f"{argument} hold {_show(values)}, but the classes are {_show(self.classes)}; "
                f"{advice}"
            )

        order = np.argsort(self.classes, kind="stable")
        codes = order[np.searchsorted(self.classes, values, sorter=order).clip(0, len(order) - 1)]
        wrong = self.classes[codes] != values
        if wrong.any():
            raise ValueError(
                f"{argument} holds {values[wrong][0].item()!r} (row {int(wrong.argmax())}), which "
                f"is not one of the classes {_show(self.classes)}; {advice}"
            )

        return torch.from_numpy(codes.astype(np.int64))

    def labels_in(self, X: TableLike) -> AnyArray | None:
        """Labels by the folders of pictures, where X is a folder and all of these are classes."""
        folders = class_folders(X)
        if folders is None or self.classes is None or self.several:
            return None
        labels = {str(label): label for label in self.classes.tolist()}
        if not set(folders) <= set(labels):
            return None
        return np.array([labels[name] for name in folders])

    def decode(self, codes: Tensor) -> AnyArray:
        """Class numbers as the caller writes classes.

        Values, and 0 and 1 for each class, stay as they are.
        """
        if self.classes is None or codes.ndim == 2:
            return codes.numpy().copy()
        return np.asarray(self.classes[codes.numpy()])


def find_outcomes(
    source: EvidenceSource,
    labels: AnyArray | None,
    *,
    task: Task | Literal["auto"],
    output: int | str | None,
    classes: ArrayLike,
) -> Outcomes:
    """Decides between classes and a value.

    With task="auto" a model of several outputs is a classifier, and so is one whose output passes a
    sigmoid. A single output that nothing follows may be a logit or a value: it is a logit where the
    labels take exactly two values.
    """
    if task == "auto":
        is_classifier = _gives_classes(source, labels, classes)
        task = "classification" if is_classifier else "regression"
    if task == "regression":
        return _values_of(source, output)

    if output is not None:
        raise ValueError(
            'output is for task="regression"; a classifier is searched by its predicted class.'
        )

    several = labels is not None and labels.ndim == 2
    if labels is not None and several:
        _require_one_column_each(labels, source)
    sigmoid = several or (source.link == "sigmoid" and source.outputs > 1)
    return Outcomes(
        "classification", source.outputs, 0, sigmoid, _classes(source, classes, labels), several
    )


def class_folders(X: TableLike) -> list[str] | None:
    """The class folder of every picture, in the order they are read.

    None where X is not a folder of such folders.
    """
    if not is_path(X) or not Path(X).is_dir():
        return None
    folder = Path(X)
    ways = [path.relative_to(folder).parts for path in picture_files(folder, "X")]
    return [way[0] for way in ways] if all(len(way) == 2 for way in ways) else None


def classes_of_folders(X: TableLike, source: EvidenceSource) -> list[str] | None:
    """The label of every class, where X is a folder of class folders.

    None where the folders are no classes of the model.

    Folders are called as the outputs, or stand for them in their order where outputs have no names.
    Numbered folders whose order as numbers and as names differs, "2" and "10", could mean either.
    """
    folders = class_folders(X)
    if folders is None or source.outputs < 2:
        return None
    names = sorted(set(folders))
    if set(names) <= set(source.output_names):
        return list(source.output_names)
    is_unnamed = source.output_names == number_outputs(source.outputs)
    are_numbers = all(name.isdecimal() for name in names)
    is_ambiguous = are_numbers and sorted(names, key=int) != names
    is_order = is_unnamed and len(names) == source.outputs and not is_ambiguous
    return names if is_order else None


def _gives_classes(source: EvidenceSource, labels: AnyArray | None, classes: ArrayLike) -> bool:
    """Whether a model is taken for a classifier."""
    if source.outputs > 1 or source.link in ("sigmoid", "softmax", "log_softmax"):
        return True
    if classes is not None or source.classes is not None:
        return True
    return labels is not None and len(np.unique(labels)) == 2


def _values_of(source: EvidenceSource, output: int | str | None) -> Outcomes:
    """The output of a regression."""
    if source.outputs > 1 and output is None:
        raise ValueError(
            f"output must be chosen among {', '.join(map(repr, source.output_names))}."
        )
    chosen = 0 if output is None else output_position(output, source.output_names)
    return Outcomes("regression", source.outputs, chosen, False, None)


def _require_one_column_each(labels: AnyArray, source: EvidenceSource) -> None:
    """An error where labels in columns do not fit a model whose rows may have several classes.

    Such labels are 0 and 1, one column per output, and not exactly one class in every row.
    """
    if labels.shape[1] != source.outputs:
        raise ValueError(
            f"labels has {labels.shape[1]} columns, but the model has {source.outputs} outputs."
        )
    if source.link != "sigmoid" and (labels.sum(1) == 1).all():
        raise ValueError(
            "labels has exactly one class in each row; pass class numbers, such as "
            "labels.argmax(1)."
        )


def _classes(source: EvidenceSource, classes: ArrayLike, labels: AnyArray | None) -> AnyArray:
    """The label of every class.

    Labels are those that the caller gives, those of the model, numbers, or names of outputs.
    """
    count = max(2, source.outputs)
    if classes is not None:
        labels_of_classes = array_of(classes, name="classes")
        plain = labels_of_classes.dtype.kind in "fiubUS"  # objects of several kinds have no order
        if (
            not plain
            or labels_of_classes.shape != (count,)
            or len(np.unique(labels_of_classes)) != count
        ):
            raise ValueError(
                f"classes must be {count} different labels, one per class in order, found "
                f"{quote(classes)}."
            )
        return labels_of_classes

    if labels is not None and _are_output_names(labels, source):
        return np.asarray(source.output_names)
    if source.classes is not None and len(source.classes) == count:
        return source.classes
    if labels is None or (labels.ndim == 1 and labels.dtype.kind not in "US"):
        return np.arange(count)
    if source.outputs == 1:
        raise ValueError(
            "labels are names, but there is one output; pass classes=[if it is negative, if "
            "positive]."
        )

    return np.asarray(source.output_names)


def _are_output_names(labels: AnyArray, source: EvidenceSource) -> bool:
    """Whether labels are names that the caller gave the outputs.

    What the model calls its classes does not matter.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "US" or source.outputs < 2:
        return False
    return bool(np.isin(labels, np.asarray(source.output_names)).all())


def label_array(
    labels: ArrayLike, count: int, *, argument: str = "labels", columns: int | None = 1
) -> AnyArray:
    """Labels of any kind as a plain array: one per row, or 0 and 1 in several columns.

    `columns` says how many columns, 1 for one label per row; None allows either.
    """
    try:
        array = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
        if array.dtype.kind == "O":
            array = np.array(array.tolist())
    except ValueError as ragged:
        raise ValueError(
            f"{argument} must hold one label per row, found {quote(labels)}."
        ) from ragged

    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    _require_label_shape(array, columns, argument)
    if len(array) != count:
        raise ValueError(f"{argument} has {len(array)} entries for {count} rows.")
    if array.dtype.kind not in "fiubUS":
        raise TypeError(f"{argument} must be numbers or names, found {array.dtype}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(
            f"{argument} has no number in row {int((~np.isfinite(array)).argmax())}; leave such "
            "rows out."
        )

    return array


def _require_label_shape(array: AnyArray, columns: int | None, argument: str) -> None:
    """An error where labels are neither one per row nor 0 and 1 in as many columns as expected."""
    is_one_per_row = array.ndim == 1 and columns in (None, 1)
    is_one_per_class = array.ndim == 2 and columns in (None, array.shape[1])
    if is_one_per_row or (is_one_per_class and bool(np.isin(array, (0, 1)).all())):
        return
    wanted = f"0 and 1 for each of {columns or 'the'} classes"
    if columns == 1:
        wanted = "one label per row"
    raise ValueError(f"{argument} has shape {array.shape}; pass {wanted}.")


def remember_labels(batches: Iterable[Any], collected: list[AnyArray | None]) -> Iterator[Any]:
    """Batches as they are; their labels, or None without any, are put into `collected`."""
    for number, batch in enumerate(batches):
        labels = None
        rows = batch
        if isinstance(batch, Mapping):
            labels = next((batch[key] for key in _LABEL_KEYS if key in batch), None)
            rows = next(iter(batch.values()))
        elif (
            isinstance(batch, tuple | list) and len(batch) > 1 and getattr(batch[0], "ndim", 0) > 1
        ):
            rows, labels = batch[:2]
        about = f"the labels of batch {number}"
        collected.append(
            None if labels is None else label_array(labels, len(rows), argument=about, columns=None)
        )
        yield batch


def comes_in_batches(X: TableLike) -> bool:
    """Whether rows come in batches, which may bring labels."""
    if hasattr(X, "shape") or isinstance(X, str | bytes | Mapping) or not hasattr(X, "__iter__"):
        return False
    if isinstance(X, list | tuple):
        is_nested_list = len(X) and isinstance(X[0], list | tuple) and np.isscalar(X[0][0])
        return not is_nested_list
    # Datasets are iterable too, one row after another; the reader says what to pass instead.
    return not (hasattr(X, "__getitem__") and hasattr(X, "__len__"))


def _show(values: AnyArray) -> str:
    shown = ", ".join(repr(value.item()) for value in np.unique(values)[:6])
    return f"[{shown}{', ...' if len(np.unique(values)) > 6 else ''}]"
