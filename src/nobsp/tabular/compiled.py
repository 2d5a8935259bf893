"""Former place of `functions` and `health`."""

from nobsp.deprecation import former_names

__getattr__ = former_names(
    __name__,
    {
        "CompiledExplainer": "nobsp.tabular.functions.Functions",
        "Health": "nobsp.tabular.health.Health",
        "TermHealth": "nobsp.tabular.health.TermHealth",
        "function_of": "nobsp.tabular.curves.function_of",
    },
)
