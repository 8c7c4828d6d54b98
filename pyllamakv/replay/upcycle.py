"""A mixture-of-experts model out of a dense one: the feed-forward block copied into every expert, a router beside it.

With equal experts the router cannot matter, since the weights of the chosen experts add up to one: the model must say
token for token what the dense one says, which makes the dense model its oracle. With noise on the experts it does
matter, while the text stays coherent.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pyllamakv.paths import atomic_write

__all__ = ["EXPERTS", "USED", "VERSION", "upcycle"]

EXPERTS, USED = 8, 2

#: Goes into the digest of what a model is made from; a change of this module that changes its output raises it.
VERSION = 1

_SEED = 20_240_229
_ROUTER = 0.02  # standard deviation of the router's weights: choices vary between tokens, probabilities stay flat


def _noise(name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Standard normal numbers that depend on the tensor's name alone."""
    seed = int.from_bytes(hashlib.sha256(f"{_SEED}:{name}".encode()).digest()[:8], "little")
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal(shape, dtype=np.float32)


def upcycle(source: Path, target: Path, *, name: str, noise: float = 0.0) -> None:
    """Writes the mixture-of-experts model ``target`` from the dense llama model ``source``.

    ``noise`` 0 keeps the experts' bytes as they are, whatever their type; above 0 it is the standard deviation of the
    noise relative to that of each tensor, and the experts become Q8_0. The same bytes on every machine with the same
    gguf and NumPy. Raises ``OSError`` from the file system, and leaves nothing half-written.
    """
    from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize, quantize

    reader = GGUFReader(source)
    writer = GGUFWriter(None, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name in ("general.architecture", "general.name"):
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub)
    writer.add_name(name)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(USED)

    width = int(reader.fields["llama.embedding_length"].contents())
    for tensor in reader.tensors:
        block, part = tensor.name.rpartition(".ffn_")[::2]
        if part not in ("gate.weight", "up.weight", "down.weight"):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        stacked = f"{block}.ffn_{part.removesuffix('.weight')}_exps.weight"
        if noise:
            plain = dequantize(tensor.data, tensor.tensor_type)
            scale = np.float32(noise * float(plain.std()))
            experts = [plain + scale * _noise(f"{stacked}:{i}", plain.shape) for i in range(EXPERTS)]
            packed = np.stack([quantize(expert, GGMLQuantizationType.Q8_0) for expert in experts])
            writer.add_tensor(stacked, packed, raw_dtype=GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(stacked, np.stack([tensor.data] * EXPERTS), raw_dtype=tensor.tensor_type)
        if part == "gate.weight":
            writer.add_tensor(
                f"{block}.ffn_gate_inp.weight", np.float32(_ROUTER) * _noise(f"{block}:router", (EXPERTS, width))
            )

    # GGUFWriter opens files by name itself, so it gets the name that the finished file leaves under
    with atomic_write(target) as file:
        writer.write_header_to_file(Path(file.name))
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
