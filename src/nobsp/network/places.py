"""A place in a model: what one call of one module gives or takes, to be read or to be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, Literal

from torch import Tensor, nn

from nobsp.network.calls import input_of

Side = Literal["output", "input"]


@dataclass(frozen=True, eq=False)
class Place:
    """Where to look in a model.

    Attributes:
        name: The module's name in the model; empty for the model itself.
        module: The module.
        call: Which of its calls in a forward pass; -1 for the last.
        side: Whether it is what the module returns or what it is given.
        calls: How many calls it gets in a forward pass.
        overwritten: Whether the model changes that tensor in place later, so that it has to be copied at once.
    """

    name: str
    module: nn.Module
    call: int
    side: Side
    calls: int = 1
    overwritten: bool = False


@contextmanager
def reading(place: Place) -> Iterator[local]:
    """Append what passes the place to the current thread's `.caught`, where it has one.

    Only tensors are kept; all calls of the module are, so that the last can be told.
    """
    here = local()

    def hook(_: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        caught = getattr(here, "caught", None)
        if caught is None:
            return
        found = input_of(args, rest) if place.side == "input" else rest[-1]
        if isinstance(found, Tensor):
            found = found.detach()
            caught.append(found.clone() if place.overwritten else found)

    if place.side == "input":
        handle = place.module.register_forward_pre_hook(hook, with_kwargs=True)
    else:
        handle = place.module.register_forward_hook(hook, with_kwargs=True)
    try:
        yield here
    finally:
        handle.remove()


@contextmanager
def replacing(place: Place) -> Iterator[local]:
    """Put the current thread's `.value`, where it has one, in the place of what passes there.

    The thread sets `.value` and `.calls = 0` before each forward pass.
    """
    here = local()

    def wanted() -> Tensor | None:
        value: Tensor | None = getattr(here, "value", None)
        if value is None:
            return None
        here.calls += 1
        chosen = place.call if place.call >= 0 else place.calls - 1
        return value if here.calls - 1 == chosen else None

    def after(_: nn.Module, *__: Any) -> Tensor | None:
        return wanted()

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        # Another thread, whose forward pass meets this hook half registered, may call it without kwargs.
        value = wanted()
        if value is None or kwargs is None:
            return None
        if args:
            return (value, *args[1:]), kwargs
        return args, {**kwargs, next(iter(kwargs)): value}

    if place.side == "input":
        handle = place.module.register_forward_pre_hook(before, with_kwargs=True)
    else:
        handle = place.module.register_forward_hook(after)
    try:
        yield here
    finally:
        handle.remove()
