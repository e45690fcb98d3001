"""Answers from private notes and public documents: the notes' texts never leave the device.

    python examples/private_notes.py --private notes/ --public handbook/ "What did we promise?"

Both sides retrieve from documents of their own and decode the answer together. The cloud sees the
question, the drafted tokens and their probabilities, but no document of the device.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tandem

MODELS = Path(__file__).resolve().parents[1] / "models"
QUESTION = "How long is a Python release maintained, and which ones does Heron support?"

if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Answers from two sides' documents.")
    arguments.add_argument("question", nargs="?", default=QUESTION)
    arguments.add_argument("--private", type=Path, default=MODELS / "demo-documents" / "private")
    arguments.add_argument("--public", type=Path, default=MODELS / "demo-documents" / "public")
    arguments.add_argument("--embedding", default="lexical", help="auto searches by meaning too")
    given = arguments.parse_args()
    with tandem.embedded(
        device_documents=[given.private],
        cloud_documents=[given.public],
        embedding=given.embedding,
    ) as suite:
        prompt = f"Question: {given.question}\nAnswer:"
        answer = suite.generate(prompt, rag=True, query=given.question, max_tokens=48, seed=1)
    print(answer.text.strip())
    device = answer.figures.device
    cloud = answer.figures.cloud
    assert device is not None
    assert cloud is not None
    print(f"\nfrom {device.documents} private and {cloud.documents} public documents;")
    for source in ("device", "cloud", "both", "recovered"):
        print(f"{source}: {answer.token_sources.count(source)} tokens")
