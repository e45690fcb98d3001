"""Exits can be trained where there is torch, and of Tandem's own packages no more than that."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
THERE = {"torch", "transformers", "safetensors", "tokenizers", "numpy", "jinja2"}


def imports_of(path: Path) -> set[str]:
    """The modules that a file imports when it is imported, names of theirs included."""
    found = set[str]()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def file_of(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((one for one in candidates if one.exists()), None)


def test_the_training_needs_torch_and_little_else() -> None:
    waiting, seen, others = {"lab.training.exit_training"}, set[str](), set[str]()
    while waiting:
        module = waiting.pop()
        seen.add(module)
        path = file_of(module)
        if path is None:
            continue
        parents = {module.rsplit(".", depth)[0] for depth in range(1, module.count(".") + 1)}
        for name in imports_of(path) | parents:
            top = name.split(".")[0]
            if top in ("tandem", "lab"):
                waiting |= {name} - seen
            else:
                others.add(top)
    assert others - set(sys.stdlib_module_names) <= THERE
    assert "torch" in others
