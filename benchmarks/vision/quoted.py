"""What the paper reports of class activation maps, by network and data set."""

from __future__ import annotations

from benchmarks.vision.candidates import PAPER

METHODS = ("GradCAM", "GradCAM++", "Eigen-CAM", PAPER)
Quotation = dict[tuple[str, str], dict[str, float]]


def _rows(text: str) -> Quotation:
    found = {}
    for line in text.strip().splitlines():
        network, data, *numbers = line.split()
        found[network, data] = dict(zip(METHODS, map(float, numbers), strict=True))
    return found


# Region Deletion AUC, supplement C.1.
DELETION: Quotation = _rows(
    """
    ResNet-18 Imagenette 0.538 0.534 0.474 0.533
    ResNet-18 CIFAR-10 0.629 0.610 0.647 0.611
    ResNet-18 CIFAR-100 0.738 0.742 0.768 0.746
    ResNet-18 TinyImageNet 0.718 0.699 0.632 0.697
    ResNet-18 STL-10 0.611 0.604 0.600 0.601
    ResNet-18 DermaMNIST 0.582 0.552 0.534 0.549
    MobileNetV2 Imagenette 0.453 0.439 0.403 0.410
    MobileNetV2 CIFAR-10 0.601 0.604 0.580 0.614
    MobileNetV2 CIFAR-100 0.765 0.754 0.740 0.758
    MobileNetV2 TinyImageNet 0.659 0.659 0.635 0.656
    MobileNetV2 STL-10 0.527 0.515 0.492 0.513
    MobileNetV2 DermaMNIST 0.553 0.550 0.533 0.535
    EfficientNet-B0 Imagenette 0.444 0.432 0.372 0.424
    EfficientNet-B0 CIFAR-10 0.551 0.549 0.521 0.540
    EfficientNet-B0 CIFAR-100 0.721 0.719 0.693 0.723
    EfficientNet-B0 TinyImageNet 0.720 0.709 0.659 0.703
    EfficientNet-B0 STL-10 0.567 0.556 0.499 0.556
    EfficientNet-B0 DermaMNIST 0.561 0.563 0.559 0.552
    RegNetY-400MF Imagenette 0.454 0.438 0.400 0.447
    RegNetY-400MF CIFAR-10 0.593 0.597 0.587 0.595
    RegNetY-400MF CIFAR-100 0.718 0.703 0.702 0.702
    RegNetY-400MF TinyImageNet 0.685 0.674 0.640 0.673
    RegNetY-400MF STL-10 0.653 0.645 0.608 0.642
    RegNetY-400MF DermaMNIST 0.516 0.478 0.460 0.478
    """
)
# Sparseness.
SPARSENESS: Quotation = _rows(
    """
    ResNet-18 CIFAR-10 0.258 0.259 0.617 0.264
    ResNet-18 TinyImageNet 0.404 0.373 0.695 0.375
    ResNet-18 DermaMNIST 0.472 0.392 0.718 0.402
    EfficientNet-B0 CIFAR-10 0.289 0.285 0.529 0.293
    EfficientNet-B0 TinyImageNet 0.599 0.652 0.758 0.562
    EfficientNet-B0 DermaMNIST 0.545 0.699 0.812 0.586
    RegNetY-400MF CIFAR-10 0.235 0.235 0.569 0.229
    RegNetY-400MF TinyImageNet 0.595 0.567 0.745 0.564
    RegNetY-400MF DermaMNIST 0.624 0.544 0.775 0.583
    """
)
# Faithfulness Correlation at the level of pixels, supplement C.2.
PIXELS: Quotation = _rows(
    """
    ResNet-18 CIFAR-10 0.041 0.048 0.021 0.011
    ResNet-18 TinyImageNet -0.004 -0.002 -0.035 0.023
    ResNet-18 DermaMNIST 0.040 0.032 0.010 0.023
    EfficientNet-B0 CIFAR-10 0.037 0.039 0.030 0.010
    EfficientNet-B0 TinyImageNet 0.058 0.069 0.025 0.060
    EfficientNet-B0 DermaMNIST -0.016 -0.035 -0.020 -0.036
    RegNetY-400MF CIFAR-10 0.007 0.012 0.026 0.050
    RegNetY-400MF TinyImageNet -0.018 0.014 0.022 -0.028
    RegNetY-400MF DermaMNIST 0.057 0.025 0.019 0.058
    """
)

# Paired difference of the paper's map and GradCAM over all 24 rows, 95% interval and corrected p (section VI-D).
OVERALL = (-0.011, -0.012, -0.009, 0.0003)
