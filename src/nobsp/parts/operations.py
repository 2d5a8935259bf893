"""Which of torch's operations are linear, which work number by number, and which hold weights."""

from __future__ import annotations

from nobsp.parts.tape import Slot, Step, Tape

# These move numbers, or copy them.
_MOVES = frozenset(
    [
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "permute",
        "transpose",
        "t",
        "squeeze",
        "unsqueeze",
        "expand",
        "select",
        "slice",
        "clone",
        "alias",
        "_to_copy",
        "contiguous",
        "flatten",
        "unflatten",
        "narrow",
        "unbind",
        "split",
        "split_with_sizes",
        "unsafe_split",
        "unsafe_chunk",
        "chunk",
        "roll",
        "flip",
        "index",
        "index_select",
        "gather",
        "constant_pad_nd",
        "copy",
        "as_strided",
        "unfold",
        "lift_fresh",
        "movedim",
        "mT",
        "repeat",
        "pixel_shuffle",
        "pixel_unshuffle",
        "channel_shuffle",
        "to",
        "diagonal",
    ]
)
# Products with weights.
_PRODUCTS = frozenset(
    [
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "mkldnn_convolution",
        "linear",
        "mkldnn_linear",
        "matmul",
        "mv",
    ]
)
# Sums of numbers with weights that do not depend on the input.
_SUMS = _PRODUCTS | frozenset(
    [
        "dot",
        "neg",
        "sum",
        "mean",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "adaptive_avg_pool2d",
        "upsample_nearest2d",
        "upsample_bilinear2d",
        "cumsum",
        "reflection_pad2d",
        "replication_pad2d",
    ]
)
_BATCH_NORMS = frozenset(
    [
        "native_batch_norm",
        "_native_batch_norm_legit_no_training",
        "_native_batch_norm_legit",
        "_batch_norm_with_update",
        "batch_norm",
    ]
)
_POINTWISE = frozenset(
    [
        "relu",
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "leaky_relu",
        "elu",
        "selu",
        "softplus",
        "mish",
        "clamp",
        "clamp_min",
        "clamp_max",
        "relu6",
        "celu",
        "exp",
        "abs",
        "square",
        "_prelu_kernel",
    ]
)
_WEIGHTED = _PRODUCTS | frozenset(
    [
        "_trilinear",
        "embedding",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "lstm",
        "gru",
    ]
)
_ATTENTION = frozenset(
    [
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
        "scaled_dot_product_attention",
    ]
)
_LOOKUPS = frozenset(("embedding", "_embedding_bag", "_embedding_bag_forward_only"))
_LINKS = frozenset(("_softmax", "_log_softmax", "softmax", "log_softmax", "sigmoid"))


def is_linear(step: Step, active: frozenset[int], *, jointly: bool = False) -> bool:
    """Whether a step's result is linear, up to a constant, in the one active tensor that it reads.

    Active tensors are those that depend on the input.

    `jointly` also counts sums of several such tensors.
    """
    name = step.name
    n_active = sum(number in active for number in step.inputs)
    if jointly and n_active > 1 and name in ("add", "sub", "rsub", "cat", "stack"):
        return True
    if n_active != 1:
        return False
    if name in _MOVES or name in _SUMS:
        return True
    if name in _BATCH_NORMS:
        return not any(argument is True for argument in step.args)
    if name in ("add", "sub", "rsub", "mul", "cat", "stack"):
        return True
    first = step.args[0] if step.args else None
    return name == "div" and isinstance(first, Slot) and first.number in active


def is_pointwise(step: Step) -> bool:
    """Whether a step changes every number by itself."""
    return step.name in _POINTWISE


def is_weighted(step: Step) -> bool:
    """Whether a step holds weights, or mixes tokens."""
    return step.name in _WEIGHTED or is_attention(step)


def is_product(step: Step) -> bool:
    """Whether a step is a product of matrices, or a convolution."""
    return step.name in _PRODUCTS


def is_attention(step: Step) -> bool:
    """Whether a step is attention as one operation."""
    return step.name in _ATTENTION


def is_lookup(step: Step) -> bool:
    """Whether a step looks rows of a table up."""
    return step.name in _LOOKUPS


def is_link(step: Step) -> bool:
    """Whether a step makes probabilities of logits."""
    return step.name in _LINKS


def is_join(step: Step, active: frozenset[int]) -> bool:
    """Whether a step adds, or puts side by side, two or more tensors that depend on the input."""
    several = sum(number in active for number in step.inputs) > 1
    if not several:
        return False
    if step.name == "add":
        return bool(step.kwargs.get("alpha", 1) == 1)
    return step.name in ("cat", "stack")


def active_values(tape: Tape) -> frozenset[int]:
    """Numbers of the real-valued tensors that depend on the input.

    Whole numbers made of the input (positions, masks, lengths) only tell where to look; what is
    looked up in a table by them begins anew.
    """
    reached = {tape.source}
    source = tape.values[tape.source]
    looked_up = any(is_lookup(step) for step in tape.steps)
    active = {tape.source} if source.is_floating_point() else set()
    for step in tape.steps:
        if not any(number in reached for number in step.inputs):
            continue
        reached.update(step.outputs)
        begins = is_lookup(step) or (not looked_up and not source.is_floating_point())
        if begins or any(number in active for number in step.inputs):
            active.update(
                number for number in step.outputs if tape.values[number].is_floating_point()
            )
    return frozenset(active)
