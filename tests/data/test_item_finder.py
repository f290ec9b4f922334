"""Items of label files by id, file name, address and position."""

import pytest

from labelahead.errors import InputError
from tests.support.label_files import make_data, read_as_lists, write_labels


def test_number_is_an_id_if_ids_are_numbers(tmp_path):
    data = make_data(ids=("10", "20", "0"), classes=("0", "1"))
    assert read_as_lists(write_labels(tmp_path, "item,label\n20,1\n0,0\n"), data)[:2] == (
        [1, 2],
        [1, 0],
    )
    with pytest.raises(InputError, match="no item is called '1'"):  # position 1 is another item
        read_as_lists(write_labels(tmp_path, "item,label\n1,1\n"), data)
    assert read_as_lists(write_labels(tmp_path, "index,label\n1,1\n"), data)[0] == [1]


def test_number_is_a_file_name_if_files_have_numbers(tmp_path):
    # Sorted as text, 10.png comes before 2.png: position 2 is another image than 2.png.
    data = make_data(ids=("train/1.png", "train/10.png", "train/2.png"))
    assert read_as_lists(write_labels(tmp_path, "id,label\n2,cat\n10,dog\n"), data)[0] == [2, 1]
    with pytest.raises(InputError, match="no item is called '0'"):
        read_as_lists(write_labels(tmp_path, "id,label\n0,cat\n"), data)


def test_number_is_a_position_if_no_name_is_a_number(tmp_path):
    data = make_data(ids=("a.png", "b.png"))
    assert read_as_lists(write_labels(tmp_path, "item,label\n1,cat\n"), data)[0] == [1]


def test_item_is_found_by_the_end_of_an_address(tmp_path):
    assert read_as_lists(
        write_labels(tmp_path, "item,label\n/home/me/all/cat/1.jpg,cat\nC:\\x\\2.jpg,dog\n")
    )[:2] == ([0, 1], [0, 1])
    with pytest.raises(InputError, match=r"no item is called 'x/2.jpg'"):
        read_as_lists(write_labels(tmp_path, "item,label\nx/2.jpg,cat\n"))
    with pytest.raises(
        InputError, match=r"line 3: '/y/2.jpg' and '/x/2.jpg' both end in 'cat/2.jpg'"
    ):
        read_as_lists(write_labels(tmp_path, "item,label\n/x/2.jpg,cat\n/y/2.jpg,cat\n"))


def test_numeric_id_beside_a_name_is_ignored(tmp_path):
    assert read_as_lists(write_labels(tmp_path, "id,image,label\n0,dog/1.jpg,cat\n"))[0] == [2]
    with pytest.raises(InputError, match=r"no item is called 'other.jpg'"):
        read_as_lists(write_labels(tmp_path, "id,image,label\n0,other.jpg,cat\n"))
    assert read_as_lists(write_labels(tmp_path, "id,image,label\ncat/2.jpg,http://host/9,cat\n"))[
        0
    ] == [1]
