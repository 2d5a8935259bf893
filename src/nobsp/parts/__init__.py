"""Parts of a network: what each adds to its outputs, and networks with fewer of them."""

from nobsp.parts.explanation import Ablation, Lens, PartsExplanation, explain_parts
from nobsp.parts.pruned import Pruned
from nobsp.parts.pruning import prune

__all__ = ["Ablation", "Lens", "PartsExplanation", "Pruned", "explain_parts", "prune"]
