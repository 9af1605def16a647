"""What files say about themselves, and files that are cut off, without a series being read."""

import gzip
import math

import nibabel as nib
import numpy as np
import pytest

from parcellation.bold_files import write_cifti, write_pair
from parcellation.errors import BadData, InputMissing, UsageError
from parcellation.headers import Header, read_header
from parcellation.surfaces import Mesh, Vertices
from parcellation.timeseries import open_bold
from tests.shared_data import CASES, needs_cases

FSAVERAGE3 = Mesh("fsaverage", (642, 642))
SERIES = np.random.default_rng(0).normal(size=(30, 1284)).astype(np.float32)
BOTH = Vertices.of(FSAVERAGE3, range(642), range(642))


@pytest.fixture(params=["gii", "mgh", "mgz", "dtseries.nii"])
def files(request, tmp_path):
    """The same run in every format."""
    if request.param == "dtseries.nii":
        write_cifti(tmp_path / "run.dtseries.nii", SERIES, BOTH, 0.8)
        return (tmp_path / "run.dtseries.nii",)
    paths = tuple(
        tmp_path / f"{side}.{'func.' * (request.param == 'gii')}{request.param}" for side in ("left", "right")
    )
    write_pair(paths, SERIES, BOTH, 0.8)
    return paths


def test_a_header_is_what_the_opened_run_says(files):
    header, bold = read_header(files), open_bold(files)
    assert (header.mesh, header.frames) == (bold.vertices.mesh, bold.frames) == (FSAVERAGE3, 30)
    np.testing.assert_equal(header.repetition_time, bold.repetition_time)
    assert header.where == bold.where
    assert read_header(files, repetition_time=2.0).repetition_time == 2.0


def test_a_file_that_is_cut_off_is_found(files):
    """nibabel#537: the header loads, the data do not."""
    path = files[-1]
    content = path.read_bytes()
    last = 200 if path.suffix in (".mgh", ".mgz") else 1  # after its numbers an MGH file has a footer
    for length in (len(content) - last, len(content) // 2, 700, 100):
        path.write_bytes(content[:length])
        with pytest.raises(BadData, match=path.name.replace(".", "[.]")):
            read_header(files)
    path.unlink()
    with pytest.raises(InputMissing, match=path.name):
        read_header(files)


def test_gifti_in_one_array_and_compressed(tmp_path):
    left, right = tmp_path / "l.func.gii", tmp_path / "r.func.gii.gz"
    array = nib.gifti.GiftiDataArray(
        SERIES[:, :642].T.copy(), intent="NIFTI_INTENT_TIME_SERIES", datatype="NIFTI_TYPE_FLOAT32"
    )
    content = nib.GiftiImage(darrays=[array]).to_bytes()
    left.write_bytes(content)
    right.write_bytes(gzip.compress(content))
    assert read_header((left, right), "fsaverage").frames == 30
    right.write_bytes(gzip.compress(content)[:-20])
    with pytest.raises(BadData, match="not a whole GIFTI file"):
        read_header((left, right), "fsaverage")
    left.write_bytes(content.replace(b'Dim1="30"', b'Dim1="0"'))
    with pytest.raises(BadData, match=r"l\.func\.gii: expected frames, got an array of 0; copy it again"):
        read_header((left, right), "fsaverage")


def test_hemispheres_that_do_not_belong_together(tmp_path):
    paths = tmp_path / "l.func.gii", tmp_path / "r.func.gii"
    write_pair(paths, SERIES, BOTH, 0.8)
    write_pair((paths[0], tmp_path / "x.func.gii"), SERIES[:20], BOTH, 0.8)
    with pytest.raises(BadData, match="different lengths, 20 and 30 frames"):
        read_header(paths)


def test_a_mesh_of_two_spaces_is_named_by_the_file_or_the_study(tmp_path):
    mesh = Mesh("fsaverage", (10242, 10242))
    vertices = Vertices.of(mesh, range(10242), range(10242))
    series = np.zeros((2, 20484), np.float32)
    for name, space in (
        ("a_hemi-{}", None),
        ("a_hemi-{}_space-fsaverage5_bold", "fsaverage"),
        ("a_space-fsLR_{}", "fsLR"),
    ):
        paths = tuple(tmp_path / f"{name.format(side)}.func.gii" for side in "LR")
        write_pair(paths, series, vertices, 0.8)
        if space is None:
            with pytest.raises(UsageError, match=r"name it with `data.space`"):
                read_header(paths)
            continue
        assert read_header(paths).mesh.space == open_bold(paths).vertices.mesh.space == space
        assert read_header(paths, "fsaverage").mesh.space == "fsaverage"


def test_a_native_mesh_is_no_known_one(tmp_path):
    """ciftiTools#65, fmriprep#3190."""
    paths = tmp_path / "l.func.gii", tmp_path / "r.func.gii"
    for path, count in zip(paths, (137001, 136500), strict=True):
        array = nib.gifti.GiftiDataArray(np.zeros(count, np.float32), datatype="NIFTI_TYPE_FLOAT32")
        path.write_bytes(nib.GiftiImage(darrays=[array] * 2).to_bytes())
    with pytest.raises(BadData, match="got 137001 and 136500"):
        read_header(paths, "fsLR")
    with pytest.raises(BadData, match="137001 vertices a hemisphere is no known mesh"):
        read_header((paths[0], paths[0]), "fsLR")


@needs_cases
def test_real_files_of_other_programs():
    gifti = CASES / "gifti"
    for name in ("wb_ASCII.L.5k.func.gii", "wb_GZIP_BASE64_BINARY.L.5k.func.gii"):
        header = read_header((gifti / name, gifti / name))
        assert (header.mesh.name, header.frames, math.isnan(header.repetition_time)) == ("fsLR_den-5k", 5, True)
    cifti = CASES / "cifti"
    header = read_header((cifti / "wb_int16scaled_10tp_5k.dtseries.nii",))
    assert isinstance(header, Header)
    assert (header.mesh.name, header.frames, header.repetition_time) == ("fsLR_den-5k", 10, 1.4)
    with pytest.raises(BadData, match="cifti-version-convert"):
        read_header((cifti / "MSC_Conte69.SmoothedMyelinMap.32k_fs_LR.dtseries.nii",))
