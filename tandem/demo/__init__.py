"""The demo pair and its documents: in `models/` of a checkout, in this package of a wheel.

The wheel's build puts them here (`tools/hatch_build.py`); a checkout has nothing else here.
"""

from __future__ import annotations

from pathlib import Path


def checkout() -> Path | None:
    """Return the repository's root if this package lies in a checkout, otherwise None."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "models").is_dir() and (root / "protos").is_dir() else None


def demo_folder(name: str) -> Path:
    """Return the folder `demo-draft`, `demo-target`, `demo-exits` or `demo-documents`. It may be
    missing: container images leave the demo out."""
    root = checkout()
    return (Path(__file__).parent if root is None else root / "models") / name


def is_demo(source: str | Path) -> bool:
    """Return whether a model's folder is one of the demo pair's, by whatever path or link."""
    return Path(source).resolve() in {
        demo_folder(name).resolve() for name in ("demo-draft", "demo-target")
    }
