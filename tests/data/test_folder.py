"""Folders and zips of image files."""

import os
import pickle
import shutil
import struct
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from labelahead.data import load
from labelahead.data.folder import arrange_by_ids, infer_folder_labels
from labelahead.data.guesses import attach_guesses
from labelahead.errors import InputError

COLOUR = (200, 100, 50)


def save_image(path, image=None, **more):
    path.parent.mkdir(parents=True, exist_ok=True)
    (image or Image.new("RGB", (20, 16), COLOUR)).save(path, **more)
    return path


def make_class_folders(root, classes=("cat", "dog"), n=6):
    for k, name in enumerate(classes):
        for i in range(n):
            save_image(root / name / f"{i}.png", Image.new("RGB", (10, 10), (40 * i, 90 * k, 7)))
    return root


def has_note(data, text):
    return any(text in note for note in data.notes)


def load_single_image(tmp_path, size=8):
    """Return the only image of a folder as the page shows it."""
    data, _ = load(tmp_path, size=size)
    return data.images.batch(torch.tensor([0]), size)[0]


# --- layout -----------------------------------------------------------------------------------


def test_load_folder_reads_class_folders(tmp_path):
    data, answers = load(make_class_folders(tmp_path / "pets"), size=4)
    assert data.name == "pets"
    assert data.classes == ("cat", "dog")
    assert data.ids[0] == "cat/0.png"
    assert list(data.ids) == sorted(data.ids)
    assert answers.take(torch.arange(12)).tolist() == [0] * 6 + [1] * 6
    assert data.shape == (3, 4, 4)
    assert data.kind == "image"
    assert len(data.test) == 2
    assert sorted(answers.take(data.test).tolist()) == [0, 1]
    pool = torch.ones(12, dtype=torch.bool)
    pool[data.test] = False
    assert torch.allclose(data.inputs[pool].mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert (data.inputs[:, 2] == 0).all()  # a constant channel
    assert load(tmp_path / "pets")[0].shape == (3, 64, 64)


def test_load_folder_flat_or_unlabelled_has_no_labels(tmp_path):
    for i in range(3):
        save_image(tmp_path / "flat" / f"{i}.jpg")
        save_image(tmp_path / "deep" / "unlabelled" / "more" / f"{i}.jpg")
    for name in ("flat", "deep"):
        data, answers = load(tmp_path / name, size=4)
        assert answers is None
        assert data.classes == ()
        assert data.test.tolist() == []
        assert has_note(data, "no labels")
        assert len(data) == 3


def test_load_folder_mixes_unlabelled_and_classes(tmp_path):
    make_class_folders(tmp_path)
    save_image(tmp_path / "unlabelled" / "a.png")
    save_image(tmp_path / "loose.png")
    data, answers = load(tmp_path, size=4)
    assert data.classes == ("cat", "dog")
    unknown = [data.ids[i] for i in range(len(data)) if not answers.has_label[i]]
    assert unknown == ["loose.png", "unlabelled/a.png"]
    assert not set(unknown) & {data.ids[i] for i in data.test}
    with pytest.raises(InputError, match=r"loose\.png"):
        answers(data.ids.index("loose.png"))


def test_load_folder_notes_single_empty_classes_and_other_files(tmp_path):
    save_image(tmp_path / "only" / "sub" / "x.png")
    save_image(tmp_path / "only" / "y.png")
    (tmp_path / "nothing").mkdir()
    (tmp_path / "only" / "notes.txt").write_text("hello")
    data, answers = load(tmp_path, size=4)
    assert data.classes == ("only",)
    assert has_note(data, "only one class folder")
    assert has_note(data, "no pictures in the folders nothing")
    assert has_note(data, "1 file is no picture: only/notes.txt")
    assert data.ids == ("only/sub/x.png", "only/y.png")
    assert answers.has_label.all()


def test_load_folder_uses_train_and_test_folders(tmp_path):
    make_class_folders(tmp_path / "train")
    make_class_folders(tmp_path / "test", n=2)
    data, answers = load(tmp_path, size=4)
    assert data.classes == ("cat", "dog")
    assert {data.ids[i].split("/")[0] for i in data.test} == {"test"}
    assert len(data.test) == 4
    assert data.ids[0].startswith("train/")  # training items first
    assert data.test.tolist() == [12, 13, 14, 15]
    assert answers.has_label.all()


def test_infer_folder_labels_uses_paths_only():
    names = ["train/a/1.png", "val/a/2.png", "test/b/3.png"]
    layout = infer_folder_labels(names)
    assert layout.official.tolist() == [False, False, True]
    assert any("validation folder joins" in note for note in layout.notes)
    assert infer_folder_labels(["train/a/1.png", "val/a/2.png"]).official.tolist() == [False, True]
    assert infer_folder_labels(["train/1.png", "test/2.png"]).classes == (
        "test",
        "train",
    )  # whole words only
    wrapped = infer_folder_labels(["set/a/1.png", "set/b/2.png"])
    assert wrapped.classes == ("a", "b")
    assert any("only folder, set" in note for note in wrapped.notes)
    assert infer_folder_labels(["9/a.png", "10/b.png"]).classes == ("9", "10")


def test_load_folder_limit_replaces_unreadable_files(tmp_path):
    make_class_folders(tmp_path, n=20)
    for i in range(0, 20, 2):
        (tmp_path / "cat" / f"{i}.png").write_bytes(b"broken")
    data, answers = load(tmp_path, size=4, limit=10)
    pool = torch.ones(len(data), dtype=torch.bool)
    pool[data.test] = False
    assert torch.bincount(answers.take(pool.nonzero().flatten())).tolist() == [5, 5]
    assert has_note(data, "cannot be read")


# --- broken files -----------------------------------------------------------------------------


def make_png_with_declared_size(width, height):
    def chunk(kind, content):
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def test_load_folder_skips_and_names_broken_files(tmp_path):
    make_class_folders(tmp_path)
    whole = save_image(tmp_path / "cat" / "z.jpg", Image.effect_noise((64, 64), 50)).read_bytes()
    (tmp_path / "cat" / "cut.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cat" / "empty.png").write_bytes(b"")
    (tmp_path / "dog" / "text.png").write_text("no picture")
    (tmp_path / "dog" / "huge.png").write_bytes(make_png_with_declared_size(20000, 20000))
    (tmp_path / "dog" / "large.png").write_bytes(make_png_with_declared_size(13000, 13700))
    (tmp_path / "dog" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(tmp_path / "dog" / "pipe.png")
    data, _ = load(tmp_path, size=4)
    assert len(data) == 13
    note = next(n for n in data.notes if "cannot be read" in n)
    assert note.startswith("7 files")
    assert "cat/cut.jpg" in note
    assert "cat/empty.png (is empty)" in note
    assert (
        "dog/large.png (13000 x 13700 pixels; expected at most 178 million: make it smaller)"
        in note
    )
    assert (
        "dog/huge.png (too many pixels (Image size (400000000 pixels)); expected at most 178 "
        "million" in note
    )
    assert "and 2 more" in note


def test_load_folder_drops_a_class_without_readable_files(tmp_path):
    make_class_folders(tmp_path)
    for name in ("ape", "zebra"):  # before and after the others
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").write_bytes(b"x")
    data, answers = load(tmp_path, size=4)
    assert data.classes == ("cat", "dog")
    assert answers.take(torch.arange(12)).tolist() == [0] * 6 + [1] * 6
    assert has_note(data, "no readable picture in the classes ape, zebra")


def test_load_folder_refuses_if_nothing_is_readable(tmp_path):
    (tmp_path / "a.png").write_bytes(b"x")
    with pytest.raises(InputError, match="none of the 1 pictures"):
        load(tmp_path)


def test_load_folder_refuses_if_there_are_no_images(tmp_path):
    with pytest.raises(InputError, match="holds no pictures"):
        load(tmp_path)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"x")
    with pytest.raises(InputError, match=r"load\('mnist', root="):
        load(tmp_path)


def test_load_folder_accepts_file_names_that_are_not_utf8(tmp_path):
    make_class_folders(tmp_path)
    os.rename(tmp_path / "cat" / "0.png", os.fsencode(tmp_path / "cat") + b"/caf\xe9 0.png")
    data, _ = load(tmp_path, size=4)
    name = next(i for i in data.ids if "caf" in i)
    assert name.encode("utf-8") == rb"cat/caf\xe9 0.png"
    at = torch.tensor([data.ids.index(name)])
    assert data.images.batch(at, 6).shape == (1, 3, 6, 6)
    assert data.images.compute_fingerprint()


# --- kinds of pictures ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "suffix", "expected"),
    [
        ("RGB", "png", COLOUR),
        ("RGB", "jpg", COLOUR),
        ("RGB", "bmp", COLOUR),
        ("RGB", "tiff", COLOUR),
        ("RGB", "ppm", COLOUR),
        ("RGB", "webp", COLOUR),
        ("RGB", "GIF", COLOUR),
        ("L", "png", (119, 119, 119)),
        ("L", "jpg", (119, 119, 119)),
        ("LA", "png", (119, 119, 119)),
        ("RGBA", "png", COLOUR),
        ("P", "png", COLOUR),
        ("CMYK", "jpg", COLOUR),
        ("CMYK", "tif", COLOUR),
        ("YCbCr", "jpg", COLOUR),
        ("1", "png", (255, 255, 255)),
    ],
)
def test_decode_converts_every_mode_to_rgb(tmp_path, mode, suffix, expected):
    picture = Image.new("RGB", (20, 16), COLOUR)
    if mode == "1":
        picture = Image.new("1", (20, 16), 1)
    elif mode == "P":
        picture = picture.convert("P", palette=Image.Palette.ADAPTIVE)
    else:
        picture = picture.convert(mode)
    save_image(tmp_path / f"a.{suffix}", picture)
    found = load_single_image(tmp_path)
    assert found.shape == (3, 8, 8)
    assert (found.float().mean((1, 2)) - torch.tensor(expected)).abs().max() < 8


def test_decode_puts_transparency_on_white(tmp_path):
    for name, picture in (
        ("rgba", Image.new("RGBA", (8, 8), (255, 0, 0, 0))),
        ("la", Image.new("LA", (8, 8), (0, 0))),
        ("half", Image.new("RGBA", (8, 8), (0, 0, 0, 128))),
    ):
        save_image(tmp_path / name / "a.png", picture)
    palette = Image.new("P", (8, 8), 0)
    palette.putpalette([9, 9, 9] * 256)
    save_image(tmp_path / "p" / "a.png", palette, transparency=0)
    for name, value in (("rgba", 255), ("la", 255), ("p", 255), ("half", 127)):
        assert (load_single_image(tmp_path / name).float() - value).abs().max() <= 1, name


def test_decode_scales_sixteen_bit_grey(tmp_path):
    ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
    for suffix in ("png", "tif"):
        save_image(tmp_path / suffix / f"a.{suffix}", Image.fromarray(ramp))
        assert np.array_equal(load_single_image(tmp_path / suffix)[0].numpy(), np.round(ramp / 257))
    save_image(
        tmp_path / "f" / "a.tif",
        Image.fromarray(np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)),
    )
    assert load_single_image(tmp_path / "f")[0].flatten().tolist() == [
        round(255 * i / 63) for i in range(64)
    ]
    wide = np.linspace(-1000, 1000, 64, dtype=np.float32).reshape(8, 8)
    save_image(tmp_path / "w" / "a.tif", Image.fromarray(wide))
    assert (load_single_image(tmp_path / "w").min(), load_single_image(tmp_path / "w").max()) == (
        0,
        255,
    )


def test_decode_applies_exif_rotation(tmp_path):
    picture = Image.new("RGB", (8, 8), (0, 0, 0))
    picture.paste((255, 255, 255), (0, 0, 8, 4))  # white at the top
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated: show the image rotated clockwise
    save_image(tmp_path / "a.png", picture, exif=exif)
    found = load_single_image(tmp_path)
    assert (found[:, :, 4:] == 255).all()
    assert (found[:, :, :4] == 0).all()


def test_decode_takes_the_first_frame_of_animations(tmp_path):
    frames = [Image.new("RGB", (8, 8), c) for c in ((255, 0, 0), (0, 0, 255))]
    tmp_path.mkdir(exist_ok=True)
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert load_single_image(tmp_path)[:, 0, 0].tolist() == [255, 0, 0]


def test_decode_resizes_shorter_side_then_crops_centre(tmp_path):
    picture = Image.new("RGB", (40, 20), (0, 0, 0))
    picture.paste((255, 255, 255), (10, 0, 30, 20))
    save_image(tmp_path / "a.png", picture)
    assert (load_single_image(tmp_path, 20) == 255).all()
    save_image(tmp_path / "thin" / "a.png", Image.new("RGB", (500, 1), COLOUR))
    assert load_single_image(tmp_path / "thin")[:, 3, 3].tolist() == list(COLOUR)


def test_decode_draft_is_close_to_full_decoding(tmp_path):
    x, y = np.meshgrid(np.arange(512), np.arange(512))
    smooth = np.stack([x // 2, y // 2, (x + y) // 4], -1).astype(np.uint8)
    save_image(tmp_path / "j" / "a.jpg", Image.fromarray(smooth), quality=95)
    save_image(tmp_path / "p" / "a.png", Image.fromarray(smooth))
    difference = (
        load_single_image(tmp_path / "j", 32).float()
        - load_single_image(tmp_path / "p", 32).float()
    )
    assert difference.abs().max() < 6


def test_image_batch_accepts_any_size_and_order(tmp_path):
    data, _ = load(make_class_folders(tmp_path), size=4)
    first = data.images.batch(torch.tensor([7, 0, 7]), 10)
    assert first.shape == (3, 3, 10, 10)
    assert first[:, :, 0, 0].tolist() == [[40, 90, 7], [0, 0, 7], [40, 90, 7]]
    assert data.images.batch(torch.empty(0, dtype=torch.int64), 5).shape == (0, 3, 5, 5)
    for size in (0, -1, 2.5, 10**6):
        with pytest.raises(InputError, match="size is"):
            data.images.batch(torch.tensor([0]), size)
    (tmp_path / "cat" / "0.png").unlink()
    with pytest.raises(InputError, match=r"cat/0\.png could be read before"):
        data.images.batch(torch.tensor([0]), 4)


# --- zips and Caltech -------------------------------------------------------------------------


def write_zip(folder, path):
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder.parent))
    return path


def test_load_folder_zip_equals_its_folder(tmp_path):
    folder = make_class_folders(tmp_path / "pets")
    (folder / "none").mkdir()
    (folder / "dog" / "b.png").write_bytes(b"broken")
    loaded, answers = load(folder, size=4)
    zipped, again = load(write_zip(folder, tmp_path / "z.zip"), size=4)
    assert [f"pets/{i}" for i in loaded.ids] == list(zipped.ids)
    assert torch.equal(loaded.inputs, zipped.inputs)
    assert torch.equal(loaded.test, zipped.test)
    assert torch.equal(answers.take(loaded.test), again.take(zipped.test))
    assert has_note(zipped, "pets/dog/b.png")
    assert has_note(zipped, "no pictures in the folders pets/none")
    copied = pickle.loads(pickle.dumps(zipped))
    at = torch.arange(3)
    assert torch.equal(copied.images.batch(at, 6), loaded.images.batch(at, 6))


def test_load_folder_refuses_broken_zips(tmp_path):
    path = write_zip(make_class_folders(tmp_path / "pets"), tmp_path / "z.zip")
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="folder or a zip"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("../out.png", b"x")
        archive.writestr("readme.txt", b"x")
        archive.writestr("x", b"x")
    content = path.read_bytes()
    with pytest.raises(InputError, match="holds no pictures"):
        load(path)
    entry = content.index(b"PK\x01\x02")
    path.write_bytes(content[: entry + 6] + b"\xff" + content[entry + 7 :])
    with pytest.raises(InputError, match="zip file version"):  # a future version
        load(path)


@pytest.mark.parametrize("packed", [False, True])
def test_caltech_is_loaded_without_its_background_class(tmp_path, packed):
    folder = make_class_folders(
        tmp_path / "101_ObjectCategories", ("ant", "BACKGROUND_Google", "Faces")
    )
    if packed:
        write_zip(folder, tmp_path / "caltech101_128px.zip")
        shutil.rmtree(folder)
    data, answers = load("caltech101", root=tmp_path, size=4, download=False)
    assert data.classes == ("Faces", "ant")
    assert len(data) == 12
    assert has_note(data, "6 pictures of BACKGROUND_Google left out")
    assert not has_note(data, "no pictures in")
    assert answers.has_label.all()
    assert data.name == "caltech101"


# --- folders that are no classes --------------------------------------------------------------


def make_dated_folders(root, n=4):
    for month in ("2024-01", "2024-02"):
        for i in range(n):
            save_image(root / month / f"{i}.png", Image.new("RGB", (10, 10), (40 * i, 90, 7)))
    return root


def test_folders_outside_the_listed_classes_have_no_labels(tmp_path):
    data, answers = load(make_dated_folders(tmp_path), classes=["cat", "dog"])
    assert answers is None
    assert data.classes == ()
    assert data.ids[0] == "2024-01/0.png"
    assert has_note(
        data,
        "folders that are none of the classes cat, dog: 2024-01, 2024-02: their pictures have no "
        "label",
    )
    make_class_folders(tmp_path, ("Cat", "dogs"), n=3)
    data, answers = load(tmp_path, classes=["cat", "dog"], test_fraction=0)
    assert data.classes == ("cat",)
    assert [data.ids[i] for i in answers.has_label.nonzero().flatten()] == [
        "Cat/0.png",
        "Cat/1.png",
        "Cat/2.png",
    ]
    assert has_note(data, "did you mean 'dog'?")


def test_class_folders_that_differ_in_case_are_one_class(tmp_path):
    layout = infer_folder_labels(
        ["train/Cat/1.png", "train/dog/2.png", "test/cat/3.png", "test/dog/4.png"]
    )
    assert layout.classes == ("Cat", "dog")
    assert layout.labels.tolist() == [0, 1, 0, 1]
    assert any("'cat' as 'Cat'" in note for note in layout.notes)


def test_single_folder_that_is_a_class_is_not_descended(tmp_path):
    assert infer_folder_labels(["cat/a/1.png", "cat/b/2.png"], classes=["cat", "dog"]).classes == (
        "cat",
    )
    assert infer_folder_labels(["cat/a/1.png", "cat/b/2.png"]).classes == ("a", "b")


# --- order of a session -----------------------------------------------------------------------


def test_arrange_by_ids_keeps_stored_order_and_appends_new_files(tmp_path):
    for i in range(6):
        save_image(tmp_path / "set" / f"0{i}.png", Image.new("RGB", (10, 10), (40 * i, 90, 7)))
    (tmp_path / "guesses.csv").write_text(
        "item,label\n" + "".join(f"0{i}.png,{'ab'[i % 2]}\n" for i in range(6))
    )
    loaded, _ = load(tmp_path / "set", checked=False)
    loaded = attach_guesses(loaded, [str(tmp_path / "guesses.csv")], ("a", "b"))
    data, answers = arrange_by_ids((loaded, None), ["05.png", "gone.png", "01.png"])
    assert data.ids == ("05.png", "gone.png", "01.png", "00.png", "02.png", "03.png", "04.png")
    assert answers is None
    arranged = data.images.batch(torch.tensor([0, 2, 6]), 8)
    assert torch.equal(arranged, loaded.images.batch(torch.tensor([5, 1, 4]), 8))
    assert data.images.get_file_sizes()[1] is None
    (guesses,) = data.guesses.values()
    assert guesses.probabilities[[0, 2, 3]].argmax(1).tolist() == [1, 1, 0]
    assert guesses.probabilities[1].tolist() == [0, 0]  # none for `gone.png`


def test_arrange_by_ids_keeps_the_task_and_former_names(tmp_path):
    for i in range(3):
        save_image(tmp_path / "set" / f"{i}.png", Image.new("RGB", (10, 10)))
    options = {"task": "rating", "classes": ("bad", "fair", "good"), "checked": False}
    loaded, _ = load(tmp_path / "set", **options)
    loaded = replace(loaded, former_classes={"poor": "bad"})
    data, _ = arrange_by_ids((loaded, None), ["2.png", "0.png", "1.png"])
    assert data.task is loaded.task
    assert data.task.levels == ("bad", "fair", "good")
    assert data.former_classes == {"poor": "bad"}
