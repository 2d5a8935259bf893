"""The data sets of the paper, with the paper's preprocessing.

`load` gives a table split, imputed, one-hot encoded and standardised; `load_images` gives images with labels.
Files are looked for in the folder named by the environment variable NOBSP_DATA, then in a cache, and are
downloaded into the cache otherwise.
"""

from nobsp.datasets.files import cache_folder
from nobsp.datasets.images import IMAGE_SETS, Images, load_images
from nobsp.datasets.pictures import IMAGENETTE_IN_IMAGENET
from nobsp.datasets.tabular import TABLES, Dataset, load

__all__ = ["IMAGENETTE_IN_IMAGENET", "IMAGE_SETS", "TABLES", "Dataset", "Images", "cache_folder", "load", "load_images"]
