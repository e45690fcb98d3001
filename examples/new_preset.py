"""A preset of your own. It is sent as its differences from a listed one: any suite can serve it."""

from __future__ import annotations

import tandem

# coupled, but drafting goes on while drafts are judged: two of 4 tokens may be under way.
pipelined = tandem.preset("coupled", window=8, chunk=4, verify_on_arrival=True)

if __name__ == "__main__":
    with tandem.embedded(rtt_s=0.1) as suite:
        for name, preset in (("coupled", "coupled"), ("pipelined", pipelined)):
            answer = suite.generate("A list is", preset=preset, max_tokens=40, seed=7)
            figures = answer.figures
            print(f"{name}: {figures.duration_s:.2f} s, acceptance {figures.acceptance_rate:.0%}")
