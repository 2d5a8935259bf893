"""Parts of a network: what embedding, heads, MLPs, blocks and units add to its outputs."""

from nobsp.parts.explanation import Ablation, Lens, PartsExplanation, explain_parts

__all__ = ["Ablation", "Lens", "PartsExplanation", "explain_parts"]
