"""GIFTI files by nibabel, bounded: a data array that says of impossible lengths is refused before it is looped over."""

from pathlib import Path

import nibabel as nib
from nibabel.gifti.parse_gifti_fast import GiftiImageParser

from parcellation.errors import BadData

MOST_AXES = 6  # of a data array, as the format has it
MOST_VALUES = 1 << 36  # of a data array: more than any file that fits into memory


class _BoundedParser(GiftiImageParser):
    def StartElementHandler(self, name: str, attributes: dict[str, str]) -> None:
        if name == "DataArray":
            axes = int(attributes.get("Dimensionality", 1))
            lengths = [int(attributes.get(f"Dim{axis}", 1)) for axis in range(min(axes, MOST_AXES))]
            values = 1
            for length in lengths:
                values *= length
            if not 0 < axes <= MOST_AXES or min(lengths) < 0 or values > MOST_VALUES:
                raise ValueError(f"a data array of {axes} axes of lengths {lengths}")
        super().StartElementHandler(name, attributes)


class _BoundedImage(nib.GiftiImage):
    parser = _BoundedParser


def load_gifti(path: Path) -> nib.GiftiImage:
    """Read a GIFTI file whole, in any encoding; numbers beside it are read into memory and not mapped.

    Raises BadData for anything that is none.
    """
    try:
        return _BoundedImage.from_filename(path, mmap=False)
    except Exception as error:  # nibabel raises errors of many kinds, from its XML parser's to zlib's
        said = " ".join(str(error).split())
        raise BadData(f"{path}: cannot be read as a GIFTI file ({said}); copy or convert it again") from error
