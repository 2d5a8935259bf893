"""Names for what users may pass and what arrays hold, shared by all rooms."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]
AnyArray: TypeAlias = NDArray[Any]

# Numpy arrays, torch tensors on any device, lists of numbers: whatever `as_numpy` reads. Tensors
# are not named here because this module does without torch, and numpy's own alias knows none of
# their methods.
ArrayLike: TypeAlias = Any
# Anything with rows and columns: a frame of pandas, polars, pyarrow or any library narwhals knows,
# or an array.
TableLike: TypeAlias = Any
# A frame of narwhals. Its own generic type would have to be carried through every signature.
Frame: TypeAlias = Any

# What a model may be asked to do along a feature.
Shape: TypeAlias = Literal["increasing", "decreasing", "convex", "concave", "bounded"]
# Anything that explainers take as a model: a torch module, a fitted estimator of scikit-learn or a
# library of trees, an onnxruntime session, or a function from an array to an array.
ModelLike: TypeAlias = Any
# Images, signals or texts: a tensor or an array, pictures, paths, a loader, or an iterable of
# batches.
ImagesLike: TypeAlias = Any
# A frame of pandas, or of polars where pandas is not installed or the caller's table was one.
NativeFrame: TypeAlias = Any
# Axes of matplotlib, one or several; None for a new figure.
AxesLike: TypeAlias = Any

# A point in the input that others are measured from: "mean", "zero", "median" or "mode", one value
# per column, or a dictionary from feature to one of these.
BaselineLike: TypeAlias = Any
# Which output is meant: a class by number or name, one for every row, or a word that the method's
# documentation names.
TargetLike: TypeAlias = Any
