"""Which tensors of a forward pass everything goes through, by the graph of its gradients.

One single pass is enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nobsp.network.guest import Side, evaluation_mode, hooked
from nobsp.network.readout import tensors_in

# A module, which of its calls, and whether it is what the module is given or returns.
Passage = tuple[str, int, Side]


@dataclass(eq=False)
class Graph:
    """The graph of a pass: where it ends and begins, and the nodes that made its tensors."""

    output: Any = None  # the node that made the output; None where there is no graph
    source: Any = None  # the node that the input enters by
    made_by: dict[Passage, Any] = field(default_factory=dict)

    def leads_around(self, passage: Passage) -> bool:
        """Whether the output also depends on the input along a way around this tensor.

        False where that is not known.
        """
        blocked = self.made_by.get(passage)
        if self.output is None or blocked is None or blocked is self.source:
            return False
        waiting = [self.output]
        visited = {blocked}
        while waiting:
            node = waiting.pop()
            if node is self.source:
                return True
            if node in visited:
                continue
            visited.add(node)
            waiting.extend(before for before, _ in node.next_functions if before is not None)
        return False


def trace_graph(module: nn.Module, x: Tensor, parts: Mapping[str, nn.Module]) -> Graph:
    """Run the model once with gradients.

    The graph is empty where the model gives no gradients, or several outputs.
    """
    graph = Graph()
    if not x.is_floating_point():
        return graph

    counts: Counter[str] = Counter()

    def note(side: Side, name: str, _: nn.Module, passing: Any) -> None:
        if side == "input":
            counts[name] += 1
        if isinstance(passing, Tensor) and passing.grad_fn is not None:
            graph.made_by[name, counts[name] - 1, side] = passing.grad_fn

    with torch.enable_grad():
        # A copy of the leaf: the model may write into its input, but not into a leaf.
        entering = x.detach().clone().requires_grad_().clone()
    graph.source = entering.grad_fn
    try:
        with (
            evaluation_mode(module, gradients=True) as run,
            hooked(run, parts, "input", partial(note, "input")) as before,
            hooked(run, parts, "output", partial(note, "output")) as after,
        ):
            before.on = True
            after.on = True
            outputs = list(tensors_in(run(entering)).values())
    except RuntimeError:
        return Graph()
    if len(outputs) == 1:
        graph.output = outputs[0].grad_fn
    return graph
