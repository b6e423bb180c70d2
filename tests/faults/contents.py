"""Contents that somebody chose: files with right checksums and wrong numbers."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import zoo
from datamodules.corpora.rows import SCHEMA, Rows
from datamodules.retrieval import FolderMemory
from tests.faults.campaigns import TEXTS, Campaign, Random, made_run, predicted
from tests.zoo.conftest import renew_manifest
from zoo.model_folder.export import export

#: Numbers at the ends of types and of arrays.
EXTREMES = (-1, -2, 0, 1, 2**15, 2**31 - 1, -(2**31), 2**40, 2**63 - 1, -(2**63))


def wrong_array(file: Path, random: Random) -> None:
    """Change numbers, type, order or length of an .npy file, or the shape that its header announces."""
    array = np.array(np.load(file))
    kind = int(random.integers(7))
    if kind == 0 and array.size:
        places = random.integers(array.size, size=int(random.integers(1, 4)))
        value = EXTREMES[int(random.integers(len(EXTREMES)))]
        with np.errstate(all="ignore"):
            array.reshape(-1)[places] = np.array(value).astype(array.dtype)
    elif kind == 1:
        random.shuffle(array)
    elif kind == 2:
        array = array[: int(random.integers(len(array) + 1))]
    elif kind == 3:
        array = np.concatenate([array, array])
    elif kind == 4:
        array = array.astype(random.choice([">i4", "<i8", "<f8", "<u2"]))
    elif kind == 5:
        array = array.reshape(*array.shape, 1)
    np.save(file, array)
    if kind == 6:
        header = {"descr": array.dtype.str, "fortran_order": False, "shape": (2**40, *array.shape[1:])}
        with file.open("wb") as out:
            np.lib.format.write_array_header_1_0(out, header)
            out.write(array.tobytes())


def wrong_strings(file: Path, random: Random) -> None:
    """Move the ends of strings in an Arrow file, or make them other bytes than UTF-8."""
    rows = Rows.load(file)
    columns = []
    for field in SCHEMA:
        array = (
            pa.concat_arrays(rows.table.column(field.name).chunks) if len(rows) else pa.array([], field.type)
        )
        validity, offsets, data = array.buffers()
        wide = pa.types.is_large_string(field.type)
        ends = np.frombuffer(offsets, np.int64 if wide else np.int32).copy()
        contents = bytearray(data or b"")
        if len(ends) and random.random() < 0.7:
            value = EXTREMES[int(random.integers(len(EXTREMES)))]
            ends[random.integers(len(ends))] = np.array(value).astype(ends.dtype)
        if contents and random.random() < 0.3:
            contents[int(random.integers(len(contents)))] = 0xFF
        buffers = [validity, pa.py_buffer(ends), pa.py_buffer(bytes(contents))]
        with suppress(pa.ArrowInvalid):  # ends that Arrow itself refuses to make
            array = pa.Array.from_buffers(field.type, len(rows), buffers)
        columns.append(array)
    with pa.OSFile(str(file), "wb") as out, pa.ipc.new_file(out, SCHEMA) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))


WRONG: dict[str, Callable[[Path, Random], None]] = {".npy": wrong_array, ".arrow": wrong_strings}


def contents(folder: Path) -> Campaign:
    """An exported model with a wrong number, whose checksums are right, predicts, grows, or is refused."""
    run = made_run(folder / "whole") / "run"
    exported = export(run, folder / "exported")
    predicted(exported)

    def case(random: Random, work: Path) -> Callable[[], Any]:
        # Copied and not linked: its files and their manifest are written again in place.
        shutil.copytree(exported, work)
        files = sorted(path for path in work.rglob("*") if path.suffix in WRONG)
        file = files[int(random.integers(len(files)))]
        WRONG[file.suffix](file, random)
        renew_manifest(file.parent)

        def use() -> None:
            predictor = zoo.load(work)
            predictor.predict(TEXTS)
            memory = predictor.memory
            assert isinstance(memory, FolderMemory)
            memory.search(TEXTS, 3, exclude_duplicates=True)
            memory.add(Rows.from_lists(["a new apple"], ["fruit"]))
            memory.search(TEXTS, 3)

        return use

    return Campaign(case)
