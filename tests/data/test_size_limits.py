"""Files that announce or decompress to far more than they hold are refused before allocation."""

import io
import tracemalloc
import zipfile

import numpy as np
import pytest

from labelahead.data import load
from labelahead.data.arrays import read_npz
from labelahead.errors import InputError
from labelahead.outofcore.addresses import read_npy_header


def lying_npy(shape, content=b"\0" * 16):
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + content


@pytest.mark.parametrize("shape", [(2**30, 4), (8, 2**40)])
def test_npy_with_a_lying_header_is_refused(tmp_path, shape):
    alone, inside = tmp_path / "alone.npz", tmp_path / "inside.npz"
    alone.write_bytes(lying_npy(shape))
    with zipfile.ZipFile(inside, "w") as archive:
        archive.writestr("x.npy", lying_npy(shape))
    tracemalloc.start()
    for path in (alone, inside):
        with pytest.raises(InputError, match=r"announces an array .* but 16 bytes follow"):
            read_npz(path)
    with pytest.raises(InputError, match="announces an array"), alone.open("rb") as file:
        read_npy_header(file, "vectors.npy")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_pool_of_npy_files_checks_declared_sizes(tmp_path):
    from labelahead.outofcore import embed

    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "part.npy").write_bytes(lying_npy((2, 2**40)))
    with pytest.raises(InputError, match="announces an array"):
        embed(tmp_path / "pool", tmp_path / "store", workers=1)


def test_complete_arrays_are_read(tmp_path):
    x, y = np.arange(24.0).reshape(12, 2), np.array(list("ab") * 6)
    for name, write in (("plain", np.savez), ("packed", np.savez_compressed)):
        write(tmp_path / f"{name}.npz", x=x, y=y, empty=np.zeros((0, 3)), one=np.float32(1))
        read = read_npz(tmp_path / f"{name}.npz")
        assert np.array_equal(read["x"], x)
        assert read["empty"].shape == (0, 3)
        assert len(load(str(tmp_path / f"{name}.npz"))[0]) == 12
