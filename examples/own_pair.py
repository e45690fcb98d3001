"""Your own pair: `python examples/own_pair.py ./my-small-model ./my-large-model "Hello"`.

Any two Hugging Face decoder models with safetensors weights will do, by folder or as NAME@COMMIT of
the hub; without them the demo pair answers. Their tokenizers may differ.
"""

from __future__ import annotations

import argparse

import tandem

if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("draft", nargs="?")
    arguments.add_argument("target", nargs="?")
    arguments.add_argument("prompt", nargs="?", default="A list is")
    arguments.add_argument("--device", default="cpu", help="of the target: cpu, cuda or cuda:N")
    arguments.add_argument("--dtype", default="float32", help="of the target")
    given = arguments.parse_args()
    with tandem.embedded(
        given.draft, given.target, device_target=given.device, dtype_target=given.dtype
    ) as suite:
        for preset in ("ar", "coupled", "dssd"):  # ar: the target alone, for comparison
            answer = suite.generate(given.prompt, preset=preset, max_tokens=32, seed=7)
            figures = answer.figures
            print(f"{preset}: {answer.text!r}")
            print(f"  {figures.target_passes} target passes for {figures.tokens} tokens,", end=" ")
            print(f"acceptance {figures.acceptance_rate or 0:.0%}, {figures.duration_s:.2f} s")
