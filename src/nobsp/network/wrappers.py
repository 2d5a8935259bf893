"""Modules that only wrap others: what `torch.compile` and the parallel wrappers make."""

from __future__ import annotations

import sys
from typing import cast

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel


def is_compiled(part: nn.Module) -> bool:
    """Whether `part` came out of `torch.compile`; asked without loading the compiler, which is slow."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(part, compiler.OptimizedModule)


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile` and parallel wrappers: those do not run the hooks of the original."""
    while True:
        if is_compiled(model):
            model = cast(nn.Module, model._orig_mod)
        elif isinstance(model, DataParallel | DistributedDataParallel):
            model = model.module
        else:
            return model
