"""Explaining networks on images."""

from nobsp.vision.cam import NObSPCam, explain_images
from nobsp.vision.confusions import Confusion, Confusions, confusions
from nobsp.vision.health import CamHealth
from nobsp.vision.maps import ActivationMaps
from nobsp.vision.removal import Removal, ThoroughMaps

__all__ = [
    "ActivationMaps",
    "CamHealth",
    "Confusion",
    "Confusions",
    "NObSPCam",
    "Removal",
    "ThoroughMaps",
    "confusions",
    "explain_images",
]
