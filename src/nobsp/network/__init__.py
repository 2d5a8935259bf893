"""What we need of a torch model: its linear head, its representation, and batches to run it on."""

from nobsp.network.adapted import Adapted
from nobsp.network.batches import Source, batches_of, with_progress
from nobsp.network.readout import Head, Readout

__all__ = ["Adapted", "Head", "Readout", "Source", "batches_of", "with_progress"]
