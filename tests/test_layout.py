"""How the house is built: what may lie where, and how large it may grow (docs: CONTRIBUTING.md)."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE_ROOTS = ("protos", "runtime", "kernels", "draft_service", "verifier_service", "router")
CODE_FOLDERS = (*SOURCE_ROOTS, "training", "packaging", "benchmarks", "tests")

MAX_FILE_LINES = 300
MAX_TEST_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
LONG_FILES: dict[str, str] = {}
"""Path: why it is better whole."""
LONG_FUNCTIONS: dict[str, str] = {}
"""Path:function: why it is better whole."""

VAGUE_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "tools"})
MARKERS = ("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")
FOREIGN_PATHS = re.compile(r"(?<![\w./])/(?:home|root|work|Users|opt|tmp)/[\w.-]+")
IMAGE_FOLDER = "/opt/" + "specmesh"
"""Where the images hold what is installed: a path of ours."""


def tracked(*suffixes: str) -> Iterator[Path]:
    """Files of the repository with one of these suffixes, generated ones and what a build leaves aside."""
    for folder in CODE_FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            generated = "_pb2" in path.name or "__pycache__" in path.parts
            if path.suffix in suffixes and not generated:
                yield path


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def python_files() -> Iterator[tuple[str, str, ast.Module]]:
    """Name, text and syntax tree."""
    for path in tracked(".py"):
        text = path.read_text(encoding="utf-8")
        yield name_of(path), text, ast.parse(text)


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_no_init_file_hides_the_other_source_roots() -> None:
    assert [name_of(path) for path in ROOT.glob("*/specmesh/__init__.py")] == []


def test_every_source_root_is_typed_and_holds_the_namespace_only() -> None:
    for root in SOURCE_ROOTS:
        assert (ROOT / root / "specmesh" / "py.typed").exists(), root
        assert [path.name for path in (ROOT / root).iterdir() if path.name != "__pycache__"] == ["specmesh"], root


def test_every_source_root_is_built_typed_and_importable() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    assert project["hatch"]["build"]["dev-mode-dirs"] == [*SOURCE_ROOTS, "training"]
    assert project["hatch"]["build"]["targets"]["wheel"]["sources"] == list(SOURCE_ROOTS)
    assert project["mypy"]["mypy_path"].split(":")[: len(SOURCE_ROOTS)] == list(SOURCE_ROOTS)


def test_names_say_what_is_inside() -> None:
    vague = [name_of(path) for path in tracked(".py") if VAGUE_NAMES & {path.stem.lower(), path.parent.name.lower()}]
    assert vague == []


def test_files_and_functions_obey_the_dials() -> None:
    """What is longer is split, or listed above with the reason; a listed one that became short leaves the list."""
    long_files, long_functions = set(), set()
    for name, text, tree in python_files():
        limit = MAX_TEST_FILE_LINES if name.startswith("tests/") else MAX_FILE_LINES
        if text.count("\n") > limit:
            long_files.add(name)
        for function in functions(tree):
            if (function.end_lineno or function.lineno) - function.lineno >= MAX_FUNCTION_LINES:
                long_functions.add(f"{name}:{function.name}")
    assert long_files == set(LONG_FILES)
    assert long_functions == set(LONG_FUNCTIONS)


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def test_nothing_is_imported_by_a_folders_name() -> None:
    """Source roots are not packages: a top-level `kernels` would be another project's."""
    folders = {*SOURCE_ROOTS, "training"}
    assert [(name, module) for name, _, tree in python_files() for module in imported(tree) if module in folders] == []


def test_files_are_finished_and_know_no_machine() -> None:
    found = []
    for path in tracked(".py", ".proto", ".toml"):
        text = path.read_text(encoding="utf-8")
        words = [] if path == Path(__file__) else [word for word in MARKERS if re.search(rf"\b{word}\b", text)]
        found += [(name_of(path), word) for word in [*words, *(set(FOREIGN_PATHS.findall(text)) - {IMAGE_FOLDER})]]
    assert found == []
