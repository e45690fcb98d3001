"""Asking a running suite: `tandem up` in one terminal, this in another.

python examples/python_client.py --endpoint 127.0.0.1:50050 --http http://127.0.0.1:8000
"""

from __future__ import annotations

import argparse
import asyncio

from openai import OpenAI

import tandem

PROMPT = "Question: Tom has 5 apples and buys 3. How many has he?\nAnswer:"


def whole_and_streamed(endpoint: str) -> None:
    with tandem.connect(endpoint) as suite:
        answer = suite.generate(PROMPT, max_tokens=32, seed=7, preset="dssd")
        print("whole:", answer.text.strip())
        print(f"acceptance {answer.figures.acceptance_rate or 0:.0%}")
        with suite.stream(PROMPT, max_tokens=32, seed=7) as stream:
            for piece in stream:
                print(piece.text, end="", flush=True)
        print("\nmade by:", *stream.answer.token_sources)


async def several_at_once(endpoint: str) -> None:
    async with tandem.connect_async(endpoint) as suite:
        answers = await asyncio.gather(
            *(suite.generate(PROMPT, max_tokens=16, seed=seed) for seed in range(4))
        )
        print("at once:", sum(answer.figures.tokens for answer in answers), "tokens")


def over_http(url: str) -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Tom has 3 apples."}],
        max_tokens=32,
        seed=7,
        extra_body={"tandem": {"preset": "dssd"}},  # what is Tandem's own
    )
    print("over HTTP:", answer.choices[0].message.content)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--endpoint", default="127.0.0.1:50050")
    arguments.add_argument("--http", default="http://127.0.0.1:8000")
    given = arguments.parse_args()
    whole_and_streamed(given.endpoint)
    asyncio.run(several_at_once(given.endpoint))
    over_http(given.http)
