"""Explaining networks on images."""

from nobsp.vision.cam import NObSPCam, explain_images
from nobsp.vision.health import CamHealth
from nobsp.vision.maps import ActivationMaps
from nobsp.vision.removal import Removal

__all__ = ["ActivationMaps", "CamHealth", "NObSPCam", "Removal", "explain_images"]
