"""What vLLM itself generates, as a program of its own: `own_greedy.py ASKED ANSWERED`, two JSON
files. Asked: the model's folder, prompts as token ids, and how many tokens. Answered: the texts."""

import json
import sys
from pathlib import Path


def main() -> None:
    from vllm import LLM, SamplingParams

    asked = json.loads(Path(sys.argv[1]).read_text())
    llm = LLM(
        model=asked["model"],
        dtype="float32",
        skip_tokenizer_init=True,
        max_model_len=512,
        max_num_seqs=8,
        enforce_eager=True,
        kv_cache_memory_bytes=2**27,
    )
    greedy = SamplingParams(
        temperature=0, max_tokens=asked["tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": each} for each in asked["prompts"]]
    answers = llm.generate(prompts, greedy, use_tqdm=False)
    texts = [list(answer.outputs[0].token_ids) for answer in answers]
    Path(sys.argv[2]).write_text(json.dumps(texts))


if __name__ == "__main__":
    main()
