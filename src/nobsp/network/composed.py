"""Readouts found by numbers: outputs that are sums, means, scaled or bent versions of several linear maps, or no such.

Every product of rows with a matrix is watched while the model runs, whoever computes it. Where the output is an affine
function of some of these products, possibly followed by a link, their inputs side by side are the representation.
Where it is not, the outputs themselves are, and the head is the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nobsp.network.readout import outputs_of, refuse_non_finite

# Most products of a combination, counted from the end, and most columns of their inputs taken side by side.
_MOST_PRODUCTS = 64
_MOST_WIDTH = 4096
# How far rounding carries sums, in units of the model's precision.
_ROUNDING = 128

Link = tuple[str, Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]


class Product(NamedTuple):
    """One product of rows with a matrix: z W (+ b)."""

    order: int
    z: Tensor
    weight: Tensor


class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
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
    for path, output in outputs.items():
        refuse_non_finite({path: output})
        for link in _links(output):
            for chosen in _choices(seen.found, output.shape[1]):
                solved = _solve(chosen, output, link, torch.finfo(dtype).eps)
                if solved is not None:
                    places = [product.order for product in chosen]
                    return Composed(module, places, *solved, path, centre=False), link[0]
    path, output = next(iter(outputs.items()))
    centre = _is_simplex(output)
    eye = torch.eye(output.shape[1], dtype=torch.float64)
    made = Composed(
        module, None, eye, torch.zeros(len(eye), dtype=torch.float64), path, centre=centre
    )
    return made, "softmax" if centre else "identity"


def _links(output: Tensor) -> Iterator[Link]:
    """Links that an output may have come through, each with its inverse."""
    yield "identity", lambda values: values, lambda values: values
    low = output.min()
    high = output.max()
    if _is_simplex(output):
        yield "softmax", _centred_logs, lambda values: values.softmax(1)
    if low >= 0 and high <= 1:
        yield "sigmoid", lambda values: torch.logit(values), torch.sigmoid
    if low >= 0:
        yield "exp", torch.log, torch.exp
        yield (
            "softplus",
            lambda values: values + torch.log(-torch.expm1(-values)),
            nn.functional.softplus,
        )

    often = [int((output == end).sum()) > max(output.shape[1], 2) for end in (low, high)]
    if any(often):
        least = float(low) if often[0] else -torch.inf
        most = float(high) if often[1] else torch.inf
        inside = lambda values: torch.where((values > least) & (values < most), values, torch.nan)  # noqa: E731
        yield "clamp", inside, lambda values: values.clamp(least, most)


def _choices(products: Sequence[Product], outputs: int) -> Iterator[list[Product]]:
    """Combinations to try: single products from the last to the first, all of as many outputs, all narrower ones."""
    fitting = [product for product in products if product.weight.shape[1] == outputs][
        -_MOST_PRODUCTS:
    ]
    yield from ([product] for product in reversed(fitting))
    if len(fitting) > 1:
        yield fitting
    narrow = [product for product in products if product.weight.shape[1] < outputs][
        -_MOST_PRODUCTS:
    ]
    if narrow:
        yield narrow


def _solve(
    products: Sequence[Product], output: Tensor, link: Link, eps: float
) -> tuple[Tensor, Tensor] | None:
    """Weight and bias of outputs that are a link of an affine function of the products; None where they are not."""
    if sum(product.z.shape[1] for product in products) > _MOST_WIDTH:
        return None

    name, undo, apply = link
    target = undo(output)
    softmax = name == "softmax"
    weights = [product.weight.double().cpu() for product in products]
    inputs = [product.z.double().cpu() for product in products]
    logits = [z @ weight for z, weight in zip(inputs, weights, strict=True)]
    sizes = [z.abs() @ weight.abs() for z, weight in zip(inputs, weights, strict=True)]
    count = output.shape[1]
    aligned = all(part.shape[1] == output.shape[1] for part in logits)
    if softmax and not aligned:
        return None
    if softmax:
        # Softmax does not see what all logits share: one factor for all outputs.
        columns = torch.stack([(part - part.mean(1, keepdim=True)).flatten() for part in logits], 1)
        free = torch.cat([columns, torch.eye(count, dtype=torch.float64).repeat(len(output), 1)], 1)
        found = _least_squares(free, target.flatten())
        if found is None:
            return None

        factors = found[: len(logits)].expand(count, -1)
        bias = found[len(logits) :]
    else:
        rows = []
        for j in range(count):
            parts = [part[:, j : j + 1] for part in logits] if aligned else logits
            free = torch.cat([*parts, torch.ones(len(output), 1, dtype=torch.float64)], 1)
            found = _least_squares(free, target[:, j])
            if found is None:
                return None
            rows.append(found)

        factors = torch.stack(rows)[:, :-1]
        bias = torch.stack(rows)[:, -1]

    # Rounding leaves a little of what plays no part.
    factors = torch.where(factors.abs() > 1e-5 * factors.abs().max(), factors, 0.0)
    # Where each output has its own factor, no matrix of outputs times outputs is made.
    blend: Callable[[Tensor, Tensor], Tensor] = torch.mul if aligned else torch.matmul
    widths = [part.shape[1] for part in logits]
    mixes = factors.T[:, :, None].unbind() if aligned else torch.split(factors, widths, 1)
    expected = bias + sum(blend(mix, part.T).T for mix, part in zip(mixes, logits, strict=True))
    size = bias.abs() + sum(
        blend(mix.abs(), part.T).T for mix, part in zip(mixes, sizes, strict=True)
    )
    allowed = _ROUNDING * eps * size
    if softmax:
        around = allowed.amax(1, keepdim=True) * output
    else:
        around = torch.maximum(
            *((apply(expected + way * allowed) - apply(expected)).abs() for way in (1, -1))
        )

    near = (
        apply(expected) - output
    ).abs() <= around + _ROUNDING * eps * output.abs() + 8 * eps * bool(softmax)
    if not bool(near.all()):
        return None

    return torch.cat(
        [blend(mix, weight.T) for mix, weight in zip(mixes, weights, strict=True)], 1
    ), bias


def _least_squares(columns: Tensor, target: Tensor) -> Tensor | None:
    """Coefficients on the rows whose target is a number; None where these are too few to tell."""
    known = target.isfinite()
    columns = columns[known]
    target = target[known]
    if len(target) < 2 * columns.shape[1] + 2 or bool((target == target[0]).all()):
        return None
    scale = columns.norm(dim=0).clamp_min(1e-300)
    solved: Tensor = (
        torch.linalg.lstsq(columns / scale, target[:, None], driver="gelsd").solution[:, 0] / scale
    )
    return solved


def _is_simplex(output: Tensor) -> bool:
    return (
        output.shape[1] > 1
        and bool((output >= 0).all())
        and bool(((output.sum(1) - 1).abs() < 1e-4).all())
    )


def _centred_logs(output: Tensor) -> Tensor:
    logs = output.clamp_min(1e-12).log()
    return logs - logs.mean(1, keepdim=True)
