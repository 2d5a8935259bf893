"""A smaller network: parts with the least unique contribution go, and the others take over.

They take over what they shared with the parts that go.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from nobsp._typing import ArrayLike
from nobsp.arguments import (
    array_of,
    count,
    names_of,
    require_choice,
    require_number,
    require_whole_number,
    suggest,
)
from nobsp.network.guest import OperationCounter, evaluation_mode, in_ordinary_modes
from nobsp.network.readout import tensors_in
from nobsp.parts.altered import altered_layers
from nobsp.parts.anatomy import NoPartsError
from nobsp.parts.attention import restore_whole, split_attention
from nobsp.parts.groups import Finder, Group
from nobsp.parts.moments import LayerMoments, in_single
from nobsp.parts.pruned import Budget, Pruned, PrunedLayer, Size, WholeLayer
from nobsp.parts.removal import RIDGE, Removal, columns_of, remove_parts
from nobsp.parts.running import (
    Rows,
    module_of,
    read_rows,
    require_deterministic,
    result_of,
    watching,
)
from nobsp.parts.sharing import Curve, share_out
from nobsp.parts.surgery import (
    columns_entering,
    matrix_of,
    outputs_leaving,
    set_matrix,
    shrink,
    take_over,
)
from nobsp.parts.tape import EveryStepSeen

BudgetOf = Literal["multiplications", "parameters"]
# Rows of a layer's Gram matrix: enough for every column, and no more than the estimate needs.
_ROWS_PER_COLUMN = 4
_FEWEST_ROWS = 16_384
# Ridge of a layer with as many rows as columns; it falls with the square of the rows.
_FEW_ROWS_RIDGE = 1e-2
# Rows whose gradients tell how a layer's errors reach the outputs.
_METRIC_ROWS = 128
# Random signs per row in this estimate.
_METRIC_DRAWS = 2
# How far a network may move when columns of zeros are cut out, in units of its precision and size.
_ROUNDING = 1e4
# Of torch's generators.
_LARGEST_SEED = 2**63 - 1


# Given a group and how many parts stay: their numbers, in order.
Choose: TypeAlias = Callable[[Group, int], Tensor]


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a removal is fitted to; others than the default are for comparison."""

    towards_whole: bool = (
        True  # layers are fitted to what the whole network gives, not to the smaller one's own
    )
    at_outputs: bool = (
        True  # parts are ranked by what their loss costs at the outputs, not in the layer
    )
    choose: Choose | None = (
        None  # another way to say which parts stay; unique contributions by default
    )
    takes_over: bool = True  # whether the parts that stay are fitted anew


@in_ordinary_modes
def prune(
    model: nn.Module,
    X: ArrayLike,
    *,
    keep: float | None = None,
    budget: float | None = None,
    budget_of: BudgetOf = "multiplications",
    y: ArrayLike | None = None,
    protect: Sequence[str] = (),
    held_out: float = 0.2,
    batch_size: int = 64,
    seed: int = 0,
) -> Pruned:
    """Makes a network smaller without retraining it and without labels.

    Units of MLPs, inner channels of residual blocks and bottlenecks (depthwise ones with their
    pair), MLP units and attention heads of transformers are taken out by their unique contribution:
    what no other part of the layer can give. The others take over what they shared. Layer after
    layer, each on what the smaller layers before it give.

    Args:
        model: A torch model that takes X as one tensor. It is left as it is.
        X: Rows to calibrate on; some hundred images, or as many rows as the widest layer has units,
            times four.
        keep: The share of parts that stays in every layer; 0.5 where neither this nor a budget is
            given.
        budget: The share of multiplications or parameters that stays, shared out over layers by
            what each removal costs at the outputs.
        budget_of: What the budget counts: "multiplications" or "parameters".
        y: Labels of X, numbers of classes from 0; only to measure accuracy on held-out rows, where
            the model returns (rows, classes).
        protect: Names of layers that stay whole, with all inside them.
        held_out: The share of rows on which the change is measured, and nothing is fitted.
        batch_size: Rows at a time.
        seed: For which rows are held out, and which positions of images are looked at.

    Returns:
        The smaller network, what went, and what it cost.

    Raises:
        ValueError: If no part can be taken out; the message says why.

    Example:
        >>> import torch, nobsp
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2)
        ... )
        >>> small = nobsp.prune(model, torch.randn(500, 4), keep=0.5)
        >>> small.model[0]
        Linear(in_features=4, out_features=16, bias=True)
    """
    return prune_by(
        model,
        X,
        keep=keep,
        budget=budget,
        budget_of=budget_of,
        y=y,
        protect=protect,
        held_out=held_out,
        batch_size=batch_size,
        seed=seed,
        recipe=Recipe(),
    )


def prune_by(
    model: nn.Module,
    X: ArrayLike,
    *,
    keep: float | None = None,
    budget: float | None = None,
    budget_of: BudgetOf = "multiplications",
    y: ArrayLike | None = None,
    protect: Sequence[str] = (),
    held_out: float = 0.2,
    batch_size: int = 64,
    seed: int = 0,
    recipe: Recipe,
) -> Pruned:
    """The same by a recipe."""
    with EveryStepSeen():
        return _prune(
            model,
            X,
            keep=keep,
            budget=budget,
            budget_of=budget_of,
            y=y,
            protect=protect,
            held_out=held_out,
            batch_size=batch_size,
            seed=seed,
            recipe=recipe,
        )


def _prune(
    model: nn.Module,
    X: ArrayLike,
    *,
    keep: float | None,
    budget: float | None,
    budget_of: BudgetOf,
    y: ArrayLike | None,
    protect: Sequence[str],
    held_out: float,
    batch_size: int,
    seed: int,
    recipe: Recipe,
) -> Pruned:
    """Reads the arguments, finds the parts, takes them out and measures."""
    _require_numbers(held_out, batch_size, seed)
    share = _share_to_keep(keep, budget, budget_of)

    module = module_of(model)
    rows = read_rows(module, X, name="X", batch_size=batch_size)
    require_deterministic(module, rows)
    n_classes = _count_classes(module, rows)
    split = _split(len(rows.tensor), held_out, int(seed))
    labels = None if y is None else _labels(y, len(rows.tensor), n_classes)[split.unseen]
    seen = Rows(rows.tensor[split.seen], rows.device, batch_size)
    unseen = Rows(rows.tensor[split.unseen], rows.device, batch_size)

    original = _copied(module)
    whole = _with_heads(original, rows)
    groups, left_whole = _find_groups(whole, rows, protect)
    surgeon = _Surgeon(whole, groups, seen, seed=int(seed), recipe=recipe)
    if isinstance(share, Budget):
        counts = surgeon.share_out(share.share, budget_of)
    else:
        counts = [max(1, math.ceil(group.count * share - 1e-9)) for group in groups]
    small, layers, failed = surgeon.operate(copy.deepcopy(whole), counts)
    restore_whole(small, original, {layer.read_by.rpartition(".")[0] for layer in layers})
    return _result(
        original,
        small,
        unseen,
        labels,
        has_classes=n_classes is not None,
        layers=layers,
        left_whole=(*left_whole, *failed),
        budget=share if isinstance(share, Budget) else None,
    )


def _require_numbers(held_out: float, batch_size: int, seed: int) -> None:
    """Raises where a number cannot be meant."""
    require_number("held_out", held_out, above=0, below=1)
    require_whole_number("batch_size", batch_size)
    require_whole_number("seed", seed, least=0)
    if seed > _LARGEST_SEED:
        raise ValueError(f"seed must be at most {_LARGEST_SEED}, found {seed}.")


def _count_classes(module: nn.Module, rows: Rows) -> int | None:
    """How many classes a model tells apart; None where its answers are not of classes."""
    with evaluation_mode(module) as run:
        answer = result_of(run(next(rows.batches())))
    if not answer.is_floating_point():
        raise TypeError(f"model answers {answer.dtype}, and only real numbers have slopes.")
    return answer.shape[1] if answer.ndim == 2 and answer.shape[1] > 1 else None


def _share_to_keep(keep: float | None, budget: float | None, budget_of: BudgetOf) -> float | Budget:
    """The share of every group that stays, or what all of them may cost together."""
    require_choice("budget_of", budget_of, ("multiplications", "parameters"))
    if keep is not None and budget is not None:
        raise ValueError("keep and budget say the same thing in two ways; pass one of them.")
    if budget is not None:
        return Budget(require_number("budget", budget, above=0, most=1), budget_of)
    return require_number("keep", 0.5 if keep is None else keep, above=0, most=1)


@dataclass(frozen=True, eq=False)
class _Split:
    seen: Tensor
    unseen: Tensor


def _split(n_rows: int, held_out: float, seed: int) -> _Split:
    """Rows to fit on and rows to measure on."""
    n_unseen = max(1, round(n_rows * held_out))
    if n_rows - n_unseen < 2:
        raise ValueError(
            f"X has {count(n_rows, 'row')}, and at least two are needed beside held-out ones."
        )
    order = torch.randperm(n_rows, generator=torch.Generator().manual_seed(seed))
    return _Split(seen=order[n_unseen:].sort().values, unseen=order[:n_unseen].sort().values)


def _labels(y: ArrayLike, n_rows: int, n_classes: int | None) -> Tensor:
    """Numbers of classes; an error where the model has no such class."""
    values = np.asarray(array_of(y, name="y"))
    if values.shape != (n_rows,) or values.dtype.kind not in "iub":
        raise ValueError(
            f"y must hold the number of a class, counted from 0, for each of {n_rows} rows, found "
            f"the shape {values.shape} and dtype {values.dtype}."
        )
    if n_classes is not None and not (values.min() >= 0 and values.max() < n_classes):
        raise ValueError(
            f"y must hold numbers of classes from 0 to {n_classes - 1}, as many as the model has "
            f"outputs, found {values.min()} to {values.max()}."
        )
    return torch.from_numpy(values.astype(np.int64))


def _copied(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode."""
    try:
        return copy.deepcopy(module).eval()
    except Exception as failure:
        raise ValueError(
            f"model cannot be copied ({failure}), and it is not changed itself. Of layers with the "
            "older weight_norm or spectral_norm take it off first, or use those of "
            "torch.nn.utils.parametrizations."
        ) from failure


def _with_heads(original: nn.Module, rows: Rows) -> nn.Module:
    """A copy whose heads can be told apart; a plain one if that gives other outputs."""
    split = split_attention(original)
    probe = rows.tensor[:2].to(rows.device)
    return split if _agree(original, split, probe) else copy.deepcopy(original)


def _find_groups(
    whole: nn.Module, rows: Rows, protect: Sequence[str]
) -> tuple[list[Group], tuple[WholeLayer, ...]]:
    """Parts that may go, and the layers that stay whole."""
    protected = names_of("protect", [protect] if isinstance(protect, str) else protect)
    if any(not isinstance(name, str) for name in protect):
        raise TypeError("protect must be names of layers, as in ['head'], and found the layers.")
    known = [name for name, _ in whole.named_modules() if name]
    for name in protected:
        if name not in known:
            raise ValueError(f"protect: there is no layer {name!r}; {suggest(name, known)}")

    groups, others = find_groups(whole, rows.tensor[:2].to(rows.device))
    left_whole = [WholeLayer(name, reason) for name, reason in others]
    removable = []
    for group in groups:
        made_by = (*group.producers, *group.channelwise)
        if any(_is_inside(name, protected) for name in made_by):
            left_whole.append(WholeLayer(group.name, "it is protected"))
        elif _is_inside(group.consumer, protected):
            reason = f"{group.consumer}, which reads what it makes, is protected"
            left_whole.append(WholeLayer(group.name, reason))
        elif group.count < 2:
            left_whole.append(WholeLayer(group.name, "it has one part only"))
        else:
            removable.append(group)
    if not removable:
        reasons = "; ".join(
            f"{layer.name or 'the model itself'}: {layer.reason}" for layer in left_whole[:5]
        )
        reasons = reasons or "it has no layers whose parts are read by another"
        raise NoPartsError(f"no part of this model can be taken out ({reasons}).")
    return removable, tuple(left_whole)


def find_groups(model: nn.Module, rows: Tensor) -> tuple[list[Group], list[tuple[str, str]]]:
    """Parts of a model that can go, and layers that stay whole with the reason."""
    # Before the model is watched, which takes hooks of its own.
    altered = altered_layers(model)
    returned: list[Tensor] = []

    def choose(result: Any) -> Tensor:
        returned.extend(_all_tensors(result))
        return result_of(result)

    with watching(model, choose) as record:
        tape = record(rows)
        return Finder(model, tape, altered=altered, returned=tuple(returned)).find()


def _all_tensors(result: Any) -> list[Tensor]:
    """Every tensor that a model returns, its outputs and what it hands out beside them."""
    if isinstance(result, Tensor):
        return [result]
    parts: Iterable[Any] = ()
    if isinstance(result, Mapping):
        parts = result.values()
    elif isinstance(result, tuple | list):
        parts = result
    elif is_dataclass(result) and not isinstance(result, type):
        parts = [getattr(result, entry.name) for entry in fields(result)]
    return [tensor for part in parts for tensor in _all_tensors(part)]


def _is_inside(name: str, protected: Iterable[str]) -> bool:
    return any(name == other or name.startswith(f"{other}.") for other in protected)


class _Reached(BaseException):
    """Ends a forward pass at the layer that was to be seen.

    No `except Exception` of a model keeps it.
    """


@dataclass(eq=False)
class _Sample:
    """What a layer of the whole network returns at some positions of every row."""

    positions: list[Tensor] = field(default_factory=list)  # per batch
    outputs: list[Tensor] = field(default_factory=list)  # per batch, (rows, positions, outputs)


@dataclass(eq=False)
class _Surgeon:
    """Takes parts out of one layer after another."""

    whole: nn.Module
    groups: list[Group]
    rows: Rows
    seed: int
    recipe: Recipe
    samples: dict[str, _Sample] = field(default_factory=dict)
    metrics: dict[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.metrics = self._metrics()
        # Without gradients and last: weights that a hook computed with gradients could not be
        # copied.
        self.samples = self._sample_whole()

    def operate(
        self, small: nn.Module, counts: Sequence[int]
    ) -> tuple[nn.Module, list[PrunedLayer], list[WholeLayer]]:
        """The smaller network, what went, and what could not."""
        layers = []
        failed = []

        for group, staying in zip(self.groups, counts, strict=True):
            if staying >= group.count:
                continue
            moments = self._moments(small, group)
            alive, cost = self._choose(moments, group, staying)
            smaller = _cut(small, group, alive, self._probe())
            if smaller is None:
                reason = "the network does not run with fewer of its parts"
                failed.append(WholeLayer(group.name, reason))
                continue
            small = smaller
            if self.recipe.takes_over:
                self._take_over(small, group, moments, alive)
            layers.append(
                PrunedLayer(
                    rows_per_column=moments.total.rows / (group.count * group.width),
                    name=group.name,
                    made_by=group.producers,
                    read_by=group.consumer,
                    kind=group.kind,
                    before=group.count,
                    after=len(alive),
                    stayed=tuple(alive.tolist()),
                    cost=cost,
                )
            )
        return small, layers, failed

    def _choose(self, moments: LayerMoments, group: Group, staying: int) -> tuple[Tensor, float]:
        """The parts that stay, and what the loss of the others is expected to cost."""
        if self.recipe.choose is not None:
            return self.recipe.choose(group, staying), 0.0
        removal = self._remove(moments, group, staying)
        return removal.alive, sum(removal.costs)

    def _take_over(
        self, small: nn.Module, group: Group, moments: LayerMoments, alive: Tensor
    ) -> None:
        """Gives the parts that stay the work of all."""
        columns = columns_of(alive, group.width)
        fit = moments.take_over(
            columns,
            metric=self.metrics.get(group.consumer),
            least_ridge=_least_ridge(moments),
        )
        shift = moments.wanted - moments.mean[columns] @ fit.matrix
        with torch.no_grad():
            take_over(dict(small.named_modules()), group, fit.matrix, shift)

    def share_out(self, budget: float, budget_of: BudgetOf) -> list[int]:
        """How many parts of each layer stay within a budget."""
        curves = []
        for group in self.groups:
            moments = self._moments(self.whole, group)
            removal = self._remove(moments, group, 1)
            curves.append(Curve(group, removal.costs))

        def measure(model: nn.Module) -> int:
            is_work = budget_of == "multiplications"
            return _multiplications(model, self.rows) if is_work else _parameters(model)

        return share_out(
            self.whole,
            self._probe()[:1],
            curves,
            budget=budget,
            budget_of=budget_of,
            measure=measure,
        )

    def _probe(self) -> Tensor:
        return self.rows.tensor[:2].to(self.rows.device)

    def _remove(self, moments: LayerMoments, group: Group, staying: int) -> Removal:
        ridge = _least_ridge(moments)
        return remove_parts(
            moments.gram,
            moments.fitted(ridge),
            width=group.width,
            keep=staying,
            metric=self.metrics.get(group.consumer),
            ridge=ridge,
        )

    def _sample_whole(self) -> dict[str, _Sample]:
        """Outputs of all consumers, in one pass."""
        samples = {group.consumer: _Sample() for group in self.groups}
        generator = torch.Generator().manual_seed(self.seed)
        layers = dict(self.whole.named_modules())
        per_row = {
            group.consumer: _positions_per_row(group, len(self.rows.tensor))
            for group in self.groups
        }

        def see(name: str, _: Tensor, leaving: Tensor) -> None:
            outputs = outputs_leaving(layers[name], leaving)
            order = torch.randperm(outputs.shape[1], generator=generator)
            positions = order[: per_row[name]].sort().values
            samples[name].positions.append(positions)
            samples[name].outputs.append(outputs[:, positions].cpu())

        with _seeing(self.whole, list(samples), see), torch.no_grad():
            for batch in self.rows.batches():
                self.whole(batch)
        return samples

    def _moments(self, small: nn.Module, group: Group) -> LayerMoments:
        """Products of what a layer reads in the smaller network and returns in the whole one."""
        sample = self.samples[group.consumer]
        layer = dict(small.named_modules())[group.consumer]
        entering: list[Tensor] = []

        def see(_: str, read: Tensor, __: Tensor) -> None:
            entering.append(read)
            raise _Reached

        moments = LayerMoments(matrix_of(layer), towards_whole=self.recipe.towards_whole)
        with _seeing(small, [group.consumer], see), torch.no_grad():
            for number, batch in enumerate(self.rows.batches()):
                entering.clear()
                with suppress(_Reached):
                    small(batch)
                columns = columns_entering(layer, entering[0])[:, sample.positions[number]]
                bias = layer.bias.detach().cpu() if isinstance(layer.bias, Tensor) else 0.0
                moments.add(columns.cpu(), in_single(sample.outputs[number]) - bias)
        return moments

    def _metrics(self) -> dict[str, Tensor]:
        """E JᵀJ of every consumer: what errors of its outputs cost at the network's outputs."""
        layers = dict(self.whole.named_modules())
        names = [group.consumer for group in self.groups]
        if not self.recipe.at_outputs:
            return {}
        sums: dict[str, Tensor] = {}
        caught: dict[str, Tensor] = {}

        def see(name: str, _: Tensor, leaving: Tensor) -> None:
            caught[name] = leaving

        generator = torch.Generator().manual_seed(self.seed)
        chosen = self.rows.tensor[:_METRIC_ROWS]
        with _seeing(self.whole, names, see), _unfrozen(self.whole), torch.enable_grad():
            for batch in Rows(chosen, self.rows.device, self.rows.batch_size).batches():
                outputs = _by_rows(result_of(self.whole(batch)))
                for draw in range(_METRIC_DRAWS):
                    signs = torch.randint(0, 2, outputs.shape, generator=generator) * 2.0 - 1.0
                    total = (outputs * signs.to(outputs)).sum()
                    tensors = [caught[name] for name in names]
                    slopes = torch.autograd.grad(
                        total, tensors, retain_graph=draw + 1 < _METRIC_DRAWS, allow_unused=True
                    )
                    for name, slope in zip(names, slopes, strict=True):
                        _add_products(sums, name, layers[name], slope)
        share = 1 / (len(chosen) * _METRIC_DRAWS)
        return {name: total * share for name, total in sums.items()}


@contextmanager
def _unfrozen(copy: nn.Module) -> Iterator[None]:
    """Lets slopes be taken through a copy of a network whose weights are frozen."""
    frozen = [weight for weight in copy.parameters() if not weight.requires_grad]
    try:
        for weight in frozen:
            weight.requires_grad_(True)
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _add_products(
    sums: dict[str, Tensor], name: str, layer: nn.Module, slope: Tensor | None
) -> None:
    if slope is None:
        return
    rows = in_single(outputs_leaving(layer, slope).flatten(0, 1))
    products = (rows.T @ rows).to("cpu", torch.float64)
    sums[name] = sums[name] + products if name in sums else products


def _least_ridge(moments: LayerMoments) -> float:
    few_rows = _FEW_ROWS_RIDGE * (len(moments.matrix) / moments.total.rows) ** 2
    return max(RIDGE, few_rows)


def _positions_per_row(group: Group, n_rows: int) -> int:
    wanted = max(_FEWEST_ROWS, _ROWS_PER_COLUMN * group.count * group.width)
    return max(1, math.ceil(wanted / n_rows))


def _cut(small: nn.Module, group: Group, alive: Tensor, probe: Tensor) -> nn.Module | None:
    """A copy without the parts that go.

    None where the model does not run as it would with zeros for them.
    """
    masked = copy.deepcopy(small)
    consumer = dict(masked.named_modules())[group.consumer]
    matrix = matrix_of(consumer)
    remaining = torch.zeros_like(matrix)
    columns = columns_of(alive, group.width)
    remaining[columns] = matrix[columns]
    set_matrix(consumer, remaining)
    cut = copy.deepcopy(small)
    shrink(dict(cut.named_modules()), group, alive)
    return cut if _agree(masked, cut, probe) else None


def _agree(masked: nn.Module, cut: nn.Module, probe: Tensor) -> bool:
    """Whether a network with fewer parts gives what it gives with zeros for them."""
    with torch.no_grad():
        expected = tensors_in(masked(probe.clone()))
        try:
            outputs = tensors_in(cut(probe.clone()))
        except (RuntimeError, ValueError, TypeError, AttributeError):
            return False
    return outputs.keys() == expected.keys() and all(
        _is_close(outputs[path], tensor) for path, tensor in expected.items()
    )


def _is_close(outputs: Tensor, expected: Tensor) -> bool:
    """Whether outputs are the same to rounding."""
    if outputs.shape != expected.shape:
        return False
    if not expected.is_floating_point() or not expected.numel():
        return True
    size = float(expected.abs().max())
    allowed = _ROUNDING * torch.finfo(expected.dtype).eps * max(size, 1e-30)
    return float((outputs - expected).abs().max()) <= allowed


See = Callable[[str, Tensor, Tensor], None]


@contextmanager
def _seeing(model: nn.Module, names: Sequence[str], see: See) -> Iterator[None]:
    """Shows what layers of a copy of ours read and return."""
    layers = dict(model.named_modules())
    handles = []
    for name in names:

        def hook(
            _: nn.Module,
            args: tuple[Any, ...],
            kwargs: dict[str, Any],
            leaving: Tensor,
            name: str = name,
        ) -> None:
            # Linear layers and convolutions take one tensor, by position or by name.
            [entering] = (*args, *kwargs.values())
            see(name, entering, leaving)

        handles.append(layers[name].register_forward_hook(hook, with_kwargs=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _result(
    whole: nn.Module,
    small: nn.Module,
    unseen: Rows,
    labels: Tensor | None,
    *,
    has_classes: bool,
    layers: Sequence[PrunedLayer],
    left_whole: Sequence[WholeLayer],
    budget: Budget | None,
) -> Pruned:
    """The smaller network with what was measured on held-out rows."""
    before = _run(whole, unseen)
    after = _run(small, unseen)
    spread = float(before.var(0, unbiased=False).sum())
    change = float(((after - before) ** 2).sum(1).mean())
    expected = sum(layer.cost for layer in layers)
    if not math.isfinite(expected + change + spread):
        raise ValueError(
            "X makes the network's numbers overflow when they are squared and added up; scale X as "
            "the network was trained on it, or leave out such rows."
        )

    return Pruned(
        model=small,
        layers=tuple(layers),
        left_whole=tuple(left_whole),
        expected_change=expected / spread if spread else math.nan,
        measured_change=change / spread if spread else math.nan,
        same_class=float((before.argmax(1) == after.argmax(1)).double().mean())
        if has_classes
        else None,
        accuracy=_accuracies(before, after, labels) if has_classes else None,
        parameters=Size(_parameters(whole), _parameters(small)),
        multiplications=Size(_multiplications(whole, unseen), _multiplications(small, unseen)),
        held_out_rows=len(unseen.tensor),
        budget=budget,
        unused_labels=labels is not None and not has_classes,
    )


def _accuracies(before: Tensor, after: Tensor, labels: Tensor | None) -> tuple[float, float] | None:
    if labels is None:
        return None
    first, second = (
        float((outputs.argmax(1) == labels).double().mean()) for outputs in (before, after)
    )
    return first, second


def _run(model: nn.Module, rows: Rows) -> Tensor:
    """Outputs in float64."""
    with torch.no_grad():
        outputs = [_by_rows(result_of(model(batch))).double().cpu() for batch in rows.batches()]
    return torch.cat(outputs)


def _by_rows(outputs: Tensor) -> Tensor:
    """Outputs as (rows, outputs); one number per row is one output."""
    return outputs.reshape(len(outputs), -1)


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _multiplications(model: nn.Module, rows: Rows) -> int:
    """Per row."""
    operations = OperationCounter()
    with torch.no_grad(), operations:
        model(rows.tensor[:1].to(rows.device, copy=True))
    return operations.total // 2
