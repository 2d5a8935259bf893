"""Former place of `auditing`."""

from nobsp.deprecation import former_names

__getattr__ = former_names(
    __name__,
    {
        "Audit": "nobsp.neighbors.auditing.Audit",
        "audit": "nobsp.neighbors.auditing.audit",
    },
)
