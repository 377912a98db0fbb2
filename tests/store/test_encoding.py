"""How files keep states: the same bits back, or what FP8 leaves of them; damaged bytes are told."""

import contextlib
import random
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
import zstandard
from hs_connectors import fp8_utils
from make.rows import random_sample
from make.stores import made_up_rows, manifest, one_dump, put, write_store

from hslib.errors import EncodingError, StoreError
from hslib.files import TensorFileError, header_bytes, parse_tensors
from hslib.parameters import ExtractionParameters
from hslib.store import CODECS, Store, StoreWriter
from hslib.store.encoding import Encoded, KeptStates
from hslib.terminal.plan import plan
from hslib.terminal.recode import recode

ENCODINGS = [name for name in CODECS if name != "plain"]
SHAPES = [(1, 1, 1), (3, 4, 8), (65, 2, 33), (40, 3, 7168), (2, 1, 300_000)]


def normal(shape: tuple[int, ...], scale: float = 1.0, seed: int = 0) -> np.ndarray:
    """Bits of normal bf16 values, uint16."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.bfloat16().view(torch.uint16).numpy()


def values_of(bits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bits.copy()).view(torch.bfloat16).float()


def file_of(encoded: Encoded) -> bytes:
    described = {name: (tensor.dtype, tensor.shape) for name, tensor in encoded.tensors.items()}
    parts = [bytes(tensor.bytes) for tensor in encoded.tensors.values()]
    return header_bytes(described, {}) + b"".join(parts)


def kept(name: str, encoded: Encoded, shape: tuple[int, ...]) -> KeptStates:
    """What is read of a file that ``encoded`` was written to."""
    return CODECS[name].kept(parse_tensors("file", file_of(encoded)).arrays, shape, "file")


def relative_errors(found: torch.Tensor, wanted: torch.Tensor) -> list[float]:
    """Per state, the largest relative error (L2) of a token."""
    lost = torch.linalg.vector_norm(found - wanted, dim=-1)
    return (lost / torch.linalg.vector_norm(wanted, dim=-1)).amax(0).tolist()


# --- the same bits, or what FP8 leaves of them --------------------------------------------


def test_lossless_gives_every_bf16_pattern_back() -> None:
    """NaN with their payloads, infinities, denormals, both zeros."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, 4, 256)
    states = kept("lossless", CODECS["lossless"].encode(bits), bits.shape)
    assert np.array_equal(states.whole(), bits)
    assert all(np.array_equal(states.one(n), bits[:, n]) for n in range(4))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CODECS)
def test_one_state_is_that_of_the_whole_and_both_are_what_was_encoded(
    name: str, shape: tuple[int, ...]
) -> None:
    bits = normal(shape)
    encoded = CODECS[name].encode(bits)
    states = kept(name, encoded, shape)
    whole = states.whole()
    assert np.array_equal(whole, bits if encoded.decoded is None else encoded.decoded)
    assert all(np.array_equal(states.one(n), whole[:, n]) for n in range(shape[1]))
    described = {n: (tensor.dtype, tensor.shape) for n, tensor in encoded.tensors.items()}
    found = parse_tensors("file", file_of(encoded)).arrays
    assert CODECS[name].tensors(shape, found) == described


@pytest.mark.parametrize(("name", "most"), [("lossless", 0.70), ("fp8", 0.51), ("fp8-aux", 0.63)])
def test_wide_states_take_so_much_of_their_bytes(name: str, most: float) -> None:
    bits = normal((64, 4, 7168)) if name != "lossless" else normal((64, 4, 7168), 37.0)
    share = len(file_of(CODECS[name].encode(bits))) / bits.nbytes
    assert share <= most
    assert CODECS[name].share(4, 7168) == pytest.approx(share, rel=0.02)


def test_what_does_not_compress_grows_by_little() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 16, (64, 2, 4096), np.uint16)
    encoded = CODECS["lossless"].encode(bits)
    assert np.array_equal(kept("lossless", encoded, bits.shape).whole(), bits)
    assert len(file_of(encoded)) < 1.0001 * bits.nbytes + 5000


@pytest.mark.parametrize("name", ["fp8", "fp8-aux"])
@pytest.mark.parametrize("scale", [1e-35, 1e-3, 1.0, 1e4, 1e37])
def test_fp8_is_within_its_rounding_at_any_scale(name: str, scale: float) -> None:
    bits = normal((20, 3, 256), scale)
    encoded = CODECS[name].encode(bits)
    assert encoded.decoded is not None
    found, wanted = values_of(encoded.decoded).double(), values_of(bits).double()
    assert encoded.errors == pytest.approx(relative_errors(found, wanted), rel=1e-3)
    assert max(encoded.errors) < 0.04
    last = encoded.errors[-1]
    assert last == 0 if name == "fp8-aux" else last > 0.01


def test_fp8_of_zeros_and_of_the_largest_values() -> None:
    bits = np.zeros((4, 2, 8), np.uint16)
    bits[1, 1] = 0x7F7F  # the largest finite bf16
    bits[2, 0, 0] = 0x0001  # the smallest denormal
    decoded = CODECS["fp8"].encode(bits).decoded
    assert decoded is not None
    assert np.array_equal(decoded[[0, 1, 3]], bits[[0, 1, 3]])
    assert np.isfinite(values_of(decoded).numpy()).all()


def test_a_layer_of_large_norm_costs_the_others_nothing() -> None:
    """speculators' FP8 has one scale per token over all layers."""
    bits = np.concatenate([normal((32, 1, 512)), normal((32, 1, 512), 3e4, seed=1)], axis=1)
    wanted = values_of(bits)
    ours = CODECS["fp8"].encode(bits).errors
    shared, scales = fp8_utils.quantize_tensor_to_fp8(wanted)
    theirs = relative_errors(fp8_utils.dequantize_fp8_tensor(shared, scales).float(), wanted)
    assert max(ours) < 0.03
    assert theirs[1] < 0.04
    assert theirs[0] > 4 * ours[0]


def test_threads_do_not_disturb_each_other() -> None:
    many = [normal((50, 3, 700), seed=seed) for seed in range(16)]

    def there_and_back(bits: np.ndarray) -> bool:
        encoded = CODECS["lossless"].encode(bits)
        return np.array_equal(kept("lossless", encoded, bits.shape).whole(), bits)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(there_and_back, many * 4))


# --- damaged files ------------------------------------------------------------------------


@pytest.fixture(params=ENCODINGS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return write_store(tmp_path / "store", made_up_rows(3), encoding=request.param)


def spoil(store: Store, change: Callable[[bytearray], object]) -> None:
    """Change the file of sample 1."""
    path = Path(store.path) / store.entries[1].file
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def test_every_flipped_bit_is_found_named_and_repaired(store: Store) -> None:
    rng, whole = random.Random(0), (Path(store.path) / store.entries[1].file).read_bytes()
    for _ in range(150):
        spoil(store, lambda data: flip(data, rng))
        (fault,) = store.verify(deep=True).faults
        assert fault.index == 1
        assert fault.check in ("readable", "header", "checksum", "digest")
        with pytest.raises(StoreError, match="sample 1 is not sound"):
            store.checked(1)
        (Path(store.path) / store.entries[1].file).write_bytes(whole)
    assert store.verify(deep=True).clean
    spoil(store, lambda data: data.__setitem__(-200, data[-200] ^ 1))
    assert store.repair(store.verify(deep=True)) == [1]
    assert list(store.entries) == [0, 2]


def test_no_bytes_make_the_reader_stumble_or_take_memory(store: Store) -> None:
    """Cuts, runs of noise and flips in header, lists and frames: an error of the kit, or states."""
    rng, path = random.Random(1), Path(store.path) / store.entries[1].file
    whole, shape = path.read_bytes(), store[1].hidden_states.shape

    def cut(data: bytearray) -> None:
        del data[rng.randrange(len(data)) :]

    def noise(data: bytearray) -> None:
        start = rng.randrange(len(data))
        data[start : start + 8] = rng.randbytes(min(8, len(data) - start))

    tracemalloc.start()
    for _ in range(300):
        spoil(store, rng.choice([cut, noise, lambda data: flip(data, rng)]))
        with contextlib.suppress(StoreError):
            assert store[1].hidden_states.shape == shape
            assert store[1].final.shape == shape[::2]
        path.write_bytes(whole)
    assert tracemalloc.get_traced_memory()[1] < 20 * len(whole) + 2_000_000
    tracemalloc.stop()


def lying_frame(size: int) -> bytes:
    """A zstd frame of a few bytes whose header promises ``size``."""
    frame = zstandard.ZstdCompressor().compress(bytes(1000))
    assert frame[4] >> 6 == 1, "two bytes of size, behind magic and descriptor"
    big = frame[:4] + bytes([frame[4] | 0xC0]) + size.to_bytes(8, "little") + frame[7:]
    assert zstandard.frame_content_size(big) == size
    return big


@pytest.mark.parametrize("size", [1 << 40, 999, 24 * 64 + 1])
def test_a_frame_that_promises_another_size_allocates_nothing(size: int) -> None:
    bits = normal((24, 1, 64))
    encoded = CODECS["lossless"].encode(bits)
    frame = lying_frame(size)
    found = {
        "hidden_states.low": np.zeros((1, 24, 64), np.uint8),
        "hidden_states.high": np.frombuffer(frame, np.uint8),
        "hidden_states.frames": np.array([[len(frame)]]),
    }
    assert encoded.tensors.keys() == found.keys()
    with pytest.raises(TensorFileError, match="another size"):
        CODECS["lossless"].kept(found, bits.shape, "file").whole()


@pytest.mark.parametrize("sizes", [[-1, 9], [5, 5], [2**62, -(2**62) + 9], [2**63 - 1, 10], [0, 0]])
def test_frames_that_are_not_as_long_as_listed_are_refused(sizes: list[int]) -> None:
    found: Mapping[str, np.ndarray] = {
        "hidden_states.low": np.zeros((2, 1, 4), np.uint8),
        "hidden_states.high": np.zeros(9, np.uint8),
        "hidden_states.frames": np.array(sizes, np.int64).reshape(2, 1),
    }
    with pytest.raises(TensorFileError, match="not as long as their list says"):
        CODECS["lossless"].kept(found, (1, 2, 4), "file")


def test_a_line_that_names_another_encoding_or_none_that_is_known_is_told(store: Store) -> None:
    journal = Path(store.path) / "journal.jsonl"
    own = store.manifest.encoding
    text = journal.read_text()
    for other in ("plain", "zfp"):
        journal.write_text(text.replace(f'"encoding":"{own}"', f'"encoding":"{other}"'))
        broken = Store(store.path)
        assert len(broken.verify(deep=True).faults) == 3
        with pytest.raises(StoreError, match="sample 1 is not sound"):
            assert broken[1].hidden_states.shape


# --- a store --------------------------------------------------------------------------------


def test_a_store_of_several_encodings_is_read_and_says_so(tmp_path: Path) -> None:
    samples = [random_sample(i, 6) for i in range(4)]
    for name, sample in zip(CODECS, samples, strict=True):
        with StoreWriter(tmp_path / "store", manifest(encoding=name)) as writer:
            put(writer, sample, one_dump(tmp_path / "dumps", sample))
    store = Store(tmp_path / "store")
    assert [entry.encoding for entry in store.entries.values()] == list(CODECS)
    assert store.verify(deep=True).clean
    told = store.encoding_sentence()
    assert all(f"1 samples {name}: " in told for name in CODECS)
    assert "differs by at most" in told
    assert [sample.hidden_states.shape for sample in store] == [(6, 4, 16)] * 4


def test_what_the_encoding_loses_is_in_the_journal_and_bounded(tmp_path: Path) -> None:
    sample = random_sample(0, 6)
    dump = one_dump(tmp_path / "dumps", sample)
    with StoreWriter(tmp_path / "store", manifest(encoding="fp8")) as writer:
        entry = put(writer, sample, dump)
    store = Store(tmp_path / "store")
    lost = relative_errors(store[0].hidden_states.float(), values_of(dump.hidden_states))
    assert [layer["encoding_error"] for layer in entry.layers] == pytest.approx(lost, rel=1e-4)
    assert store.encoding_errors() == pytest.approx(
        dict(zip(store.manifest.state_names, lost, strict=True)), rel=1e-4
    )
    place = tmp_path / "strict"
    with (
        StoreWriter(place, manifest(encoding="fp8"), max_encoding_error=0.001) as writer,
        pytest.raises(EncodingError, match="max_encoding_error") as caught,
    ):
        put(writer, sample, dump)
    assert caught.value.fields["index"] == 0
    assert caught.value.fields["state"] in store.manifest.state_names
    assert not Store(place).entries
    assert not list(place.glob("samples/*/*"))


def test_fp8_aux_without_a_final_state_is_refused() -> None:
    with pytest.raises(ValueError, match="fp8-aux needs a final state"):
        manifest(encoding="fp8-aux", final_norm="none")


def test_each_encoding_is_one_that_a_user_can_choose() -> None:
    choices = [get_args(ExtractionParameters.model_fields["encoding"].annotation)]
    choices += [
        get_args(get_args(command.__annotations__["encoding"])[0]) for command in (plan, recode)
    ]
    assert choices == [tuple(CODECS)] * 3
