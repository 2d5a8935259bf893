"""The data sets of the paper, with the paper's preprocessing: `load` for tables, `load_images` for images.

Files are looked for in the folder named by the environment variable NOBSP_DATA, then in a cache, and are downloaded
into the cache otherwise.
"""

from benchmarks.data.files import cache_folder
from benchmarks.data.images import IMAGE_SETS, Images, load_images
from benchmarks.data.tables import TABLES, Dataset, load

__all__ = ["IMAGE_SETS", "TABLES", "Dataset", "Images", "cache_folder", "load", "load_images"]
