"""A GGUF file → a Hugging Face checkpoint folder, in a process of its own: `python -m engine.train.gguf.convert`.

    SOURCE FOLDER DTYPE → config, weights and tokeniser in FOLDER; one JSON line with the number of parameters

A process of its own can be ended at once, and takes the memory of unpacked weights with it. What cannot be converted is
one line on stderr and exit code 3.
"""

import json
import sys
from pathlib import Path

from engine.core.errors import RunError


def convert(source: Path, folder: Path, dtype: str) -> int:
    """Fill `folder`; returns the number of parameters. Raises RunError when the file is not what is known."""
    from gguf import GGUFReader

    from engine.train.gguf.tokenizer import write_tokenizer
    from engine.train.gguf.weights import llama_config, write_checkpoint

    try:
        reader = GGUFReader(source)
    except ValueError as error:
        raise RunError(f"{source.name} cannot be read as GGUF: {error}") from error
    fields = {key: value.contents() for key, value in reader.fields.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    config = llama_config(fields, dtype, tied="output.weight" not in tensors)
    write_tokenizer(folder, fields)
    return write_checkpoint(folder, tensors, config)


def main(arguments: list[str]) -> int:
    source, folder, dtype = arguments
    try:
        parameters = convert(Path(source), Path(folder), dtype)
    except RunError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps({"parameters": parameters}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
