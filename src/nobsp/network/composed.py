"""Readouts found by numbers: outputs as sums, means, scaled or bent versions of linear maps.

They are of several linear maps; outputs that are no such thing are found too.

Every product of rows with a matrix is watched while the model runs, whoever computes it. Where the
output is an affine function of some of these products, possibly followed by a link, their inputs
side by side are the representation. Where it is not, the outputs themselves are, and the head is
the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nobsp.network.guest import DispatchMode
from nobsp.network.readout import outputs_of, refuse_non_finite

# Most products of a combination, counted from the end, and most columns of their inputs taken side
# by side.
_MOST_PRODUCTS = 64
_MOST_WIDTH = 4096
# How far rounding carries sums, in units of the model's precision.
_ROUNDING = 128

# Factors below this share of the largest are rounding.
_FAINTEST = 1e-5


class Link(NamedTuple):
    """What a model applies to its logits."""

    name: str
    undo: Callable[[Tensor], Tensor]  # from outputs to logits; NaN where that cannot be told
    apply: Callable[[Tensor], Tensor]


class Product(NamedTuple):
    """One product of rows with a matrix: z W (+ b)."""

    order: int
    z: Tensor
    weight: Tensor


class Products(DispatchMode):
    """Notes every product of a matrix of so many rows; of later runs only those of some places."""

    def __init__(self, rows: int, places: Sequence[int] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.places = places
        self.count = 0
        self.found: list[Product] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            z, weight = args[-2:]
            if z.shape[0] == self.rows and z.is_floating_point():
                if self.places is None or self.count in self.places:
                    self.found.append(Product(self.count, z.detach().clone(), weight.detach()))
                self.count += 1
        return func(*args, **(kwargs or {}))


class Composed(nn.Module):
    """A model that returns its logits by one linear head."""

    def __init__(
        self,
        model: nn.Module,
        places: Sequence[int] | None,
        weight: Tensor,
        bias: Tensor,
        path: str,
        *,
        centre: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.places = places
        self.path = path
        self.centre = centre
        outputs, width = weight.shape
        self.head = nn.Linear(width, outputs, device="meta")  # which draws no random numbers
        self.head.weight = nn.Parameter(weight.clone())
        self.head.bias = nn.Parameter(bias.clone())

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        if self.places is None:
            z = outputs_of(self.model(x), len(x))[self.path]
            z = _centred_logs(z) if self.centre else z
        else:
            with Products(len(x), self.places) as seen:
                self.model(x)
            if len(seen.found) != len(self.places):
                raise RuntimeError(
                    "the model made fewer products than on the probe; these must not depend on x."
                )
            z = torch.cat([product.z.double() for product in seen.found], 1)
        return torch.as_tensor(self.head(z.to(self.head.weight.device)))


def compose(
    module: nn.Module, run: Callable[[Tensor], Any], x: Tensor, dtype: torch.dtype
) -> tuple[Composed, str]:
    """The model with a head of its own, and the link that follows it."""
    with Products(len(x)) as seen:
        outputs = outputs_of(run(x.clone()), len(x))

    eps = torch.finfo(dtype).eps
    for path, output in outputs.items():
        refuse_non_finite({path: output})
        for link in _links(output):
            for products in _choices(seen.found, output.shape[1]):
                head = _solve(products, output, link, eps)
                if head is not None:
                    places = [product.order for product in products]
                    return Composed(module, places, *head, path, centre=False), link.name

    path, output = next(iter(outputs.items()))
    is_simplex = _is_simplex(output)
    weight = torch.eye(output.shape[1], dtype=torch.float64)
    bias = torch.zeros(len(weight), dtype=torch.float64)
    composed = Composed(module, None, weight, bias, path, centre=is_simplex)
    return composed, "softmax" if is_simplex else "identity"


def _links(output: Tensor) -> Iterator[Link]:
    """Links that an output may have come through, each with its inverse."""
    yield Link("identity", undo=_unchanged, apply=_unchanged)
    low = output.min()
    high = output.max()
    if _is_simplex(output):
        yield Link("softmax", undo=_centred_logs, apply=lambda values: values.softmax(1))
    if low >= 0 and high <= 1:
        yield Link("sigmoid", undo=torch.logit, apply=torch.sigmoid)
    if low >= 0:
        yield Link("exp", undo=torch.log, apply=torch.exp)
        yield Link("softplus", undo=_undo_softplus, apply=nn.functional.softplus)

    # Values that many rows share at an end were cut off there.
    many = max(output.shape[1], 2)
    is_cut_below = int((output == low).sum()) > many
    is_cut_above = int((output == high).sum()) > many
    if is_cut_below or is_cut_above:
        least = float(low) if is_cut_below else -torch.inf
        most = float(high) if is_cut_above else torch.inf
        yield Link(
            "clamp",
            undo=lambda values: values.where((values > least) & (values < most), torch.nan),
            apply=lambda values: values.clamp(least, most),
        )


def _unchanged(values: Tensor) -> Tensor:
    return values


def _undo_softplus(values: Tensor) -> Tensor:
    return values + torch.log(-torch.expm1(-values))


def _choices(products: Sequence[Product], outputs: int) -> Iterator[list[Product]]:
    """Combinations of products to try, one after another.

    First single products from the last to the first, then all of them with as many outputs, then
    all narrower ones.
    """
    as_wide = [product for product in products if product.weight.shape[1] == outputs]
    as_wide = as_wide[-_MOST_PRODUCTS:]
    yield from ([product] for product in reversed(as_wide))
    if len(as_wide) > 1:
        yield as_wide

    narrower = [product for product in products if product.weight.shape[1] < outputs]
    narrower = narrower[-_MOST_PRODUCTS:]
    if narrower:
        yield narrower


def _solve(
    products: Sequence[Product], output: Tensor, link: Link, eps: float
) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of outputs that are a link of an affine function of the products.

    None where they are not.
    """
    if sum(product.z.shape[1] for product in products) > _MOST_WIDTH:
        return None

    parts = [_Part.of(product) for product in products]
    is_aligned = all(part.logits.shape[1] == output.shape[1] for part in parts)
    target = link.undo(output)
    if link.name == "softmax":
        solution = _solve_softmax(parts, target) if is_aligned else None
    else:
        solution = _solve_outputs(parts, target, is_aligned=is_aligned)
    if solution is None:
        return None

    factors, bias = solution
    # Rounding leaves a little of what plays no part.
    factors = torch.where(factors.abs() > _FAINTEST * factors.abs().max(), factors, 0.0)
    mixture = _Mixture.of(parts, factors, bias, is_aligned=is_aligned)
    if not mixture.gives(output, link, eps):
        return None
    return mixture.weight(), bias


class _Part(NamedTuple):
    """A product in float64."""

    weight: Tensor
    logits: Tensor  # z W, (rows, columns)
    sizes: Tensor  # |z| |W|, which bounds its rounding

    @classmethod
    def of(cls, product: Product) -> _Part:
        z = product.z.double().cpu()
        weight = product.weight.double().cpu()
        return cls(weight, logits=z @ weight, sizes=z.abs() @ weight.abs())


def _solve_softmax(parts: Sequence[_Part], target: Tensor) -> tuple[Tensor, Tensor] | None:
    """Factors and bias for a softmax; None where there are none.

    A softmax does not see what all logits share, so that all outputs have one factor.
    """
    n_rows, n_outputs = target.shape
    centred = [(part.logits - part.logits.mean(1, keepdim=True)).flatten() for part in parts]
    of_bias = torch.eye(n_outputs, dtype=torch.float64).repeat(n_rows, 1)
    columns = torch.cat([torch.stack(centred, 1), of_bias], 1)

    coefficients = _least_squares(columns, target.flatten())
    if coefficients is None:
        return None
    factors = coefficients[: len(parts)].expand(n_outputs, -1)
    return factors, coefficients[len(parts) :]


def _solve_outputs(
    parts: Sequence[_Part], target: Tensor, *, is_aligned: bool
) -> tuple[Tensor, Tensor] | None:
    """Factors and bias of every output by itself.

    They are of its own columns where there are as many columns as outputs.
    """
    ones = torch.ones(len(target), 1, dtype=torch.float64)
    rows = []
    for output in range(target.shape[1]):
        own = [part.logits[:, [output]] if is_aligned else part.logits for part in parts]
        coefficients = _least_squares(torch.cat([*own, ones], 1), target[:, output])
        if coefficients is None:
            return None
        rows.append(coefficients)

    solution = torch.stack(rows)
    return solution[:, :-1], solution[:, -1]


@dataclass(frozen=True, eq=False)
class _Mixture:
    """Products blended into one affine function."""

    parts: Sequence[_Part]
    mixes: Sequence[Tensor]  # per product a factor for each output, or a matrix
    bias: Tensor
    # Where each output has its own factor, no matrix of outputs times outputs is made.
    blend: Callable[[Tensor, Tensor], Tensor]

    @classmethod
    def of(
        cls, parts: Sequence[_Part], factors: Tensor, bias: Tensor, *, is_aligned: bool
    ) -> _Mixture:
        if is_aligned:
            return cls(parts, factors.T[:, :, None].unbind(), bias, torch.mul)
        widths = [part.logits.shape[1] for part in parts]
        return cls(parts, torch.split(factors, widths, 1), bias, torch.matmul)

    def weight(self) -> Tensor:
        """One matrix for the inputs of all products side by side."""
        blended = [
            self.blend(mix, part.weight.T) for mix, part in zip(self.mixes, self.parts, strict=True)
        ]
        return torch.cat(blended, 1)

    def gives(self, output: Tensor, link: Link, eps: float) -> bool:
        """Whether the link of the blend is the output, but for rounding."""
        expected = self.bias.expand_as(output)
        size = self.bias.abs().expand_as(output)
        for mix, part in zip(self.mixes, self.parts, strict=True):
            expected = expected + self.blend(mix, part.logits.T).T
            size = size + self.blend(mix.abs(), part.sizes.T).T

        allowed = _ROUNDING * eps * size
        linked = link.apply(expected)
        if link.name == "softmax":
            tolerance = allowed.amax(1, keepdim=True) * output + 8 * eps
        else:
            above = (link.apply(expected + allowed) - linked).abs()
            below = (link.apply(expected - allowed) - linked).abs()
            tolerance = torch.maximum(above, below)
        tolerance = tolerance + _ROUNDING * eps * output.abs()
        return bool(((linked - output).abs() <= tolerance).all())


def _least_squares(columns: Tensor, target: Tensor) -> Tensor | None:
    """Coefficients on the rows whose target is a number; None where these are too few to tell."""
    known = target.isfinite()
    columns = columns[known]
    target = target[known]
    if len(target) < 2 * columns.shape[1] + 2 or bool((target == target[0]).all()):
        return None

    scale = columns.norm(dim=0).clamp_min(1e-300)
    solved = torch.linalg.lstsq(columns / scale, target[:, None], driver="gelsd")
    coefficients: Tensor = solved.solution[:, 0] / scale
    return coefficients


def _is_simplex(output: Tensor) -> bool:
    """Whether every row is a distribution over several classes."""
    if output.shape[1] < 2 or not bool((output >= 0).all()):
        return False
    return bool(((output.sum(1) - 1).abs() < 1e-4).all())


def _centred_logs(output: Tensor) -> Tensor:
    """Logits of probabilities, those of every row with mean zero."""
    logs = output.clamp_min(1e-12).log()
    return logs - logs.mean(1, keepdim=True)
