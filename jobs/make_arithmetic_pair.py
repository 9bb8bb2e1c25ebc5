"""Train the embedded `arithmetic` pair: target and draft as Hugging Face folders, their provenance in run.yaml.

    python -m jobs.make_arithmetic_pair                                   # the committed pair, 20 minutes on 2 cores
    python -m jobs.make_arithmetic_pair --preset easy --output /tmp/easy  # the honest counter-example

Training is seeded and counted in steps, not in seconds. What is taught stands in `diversed.tasks.arithmetic`.
"""

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

import torch
from rich.progress import Progress, TextColumn
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from diversed.artifacts import provenance, replace_folder, write_yaml_atomic
from diversed.tasks.arithmetic import PRESETS, PROBLEMS, TOKEN, Problem, Style, answer, vocabulary

CHECKOUT = Path(__file__).resolve().parents[1]
EMBEDDED = CHECKOUT / "platform/diversed/models/arithmetic"
CONTEXT = 256  # positions; a question, its solution and room for --task.max_new_tokens 128
SPECIAL = PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"  # ids 0, 1, 2
GENERATION = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=1, pad_token_id=0)
MEASURED_PROMPTS = 1000


@dataclass(frozen=True, slots=True)
class Recipe:
    """Shape and training of one model."""

    layers: int
    width: int
    heads: int
    steps: int
    rows: int
    learning_rate: float

    def model(self) -> LlamaForCausalLM:
        """A fresh model, drawn from torch's global generator."""
        config = LlamaConfig(
            vocab_size=len(SPECIAL) + len(vocabulary()),
            hidden_size=self.width,
            intermediate_size=3 * self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=True,
            pad_token_id=GENERATION.pad_token_id,
            bos_token_id=None,
            eos_token_id=GENERATION.eos_token_id,
        )
        return LlamaForCausalLM(config)


# The depth sets the cost ratio: a draft step takes about an eighth of a target step.
TARGET = Recipe(layers=8, width=96, heads=4, steps=1200, rows=48, learning_rate=2e-3)
DRAFT = Recipe(layers=1, width=48, heads=2, steps=2500, rows=96, learning_rate=5e-3)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A word-level tokenizer of the generator's texts.

    On what the pair writes, encode(decode(ids)) == ids, and decoding one token more only appends.
    """
    words = {word: index for index, word in enumerate([*SPECIAL, *vocabulary()])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(TOKEN.pattern), "removed", invert=True)
    # A space before every token, except inside a number, before punctuation, and at the start of a line or of the text.
    # Each exception depends on the token and the one before it, so text that was streamed already never changes.
    spaces_to_drop = r"(?<=[0-9]) (?=[0-9])| (?=[.?\n])|(?<=\n) |^ "
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(Regex("^"), " "), decoders.Fuse(), decoders.Replace(Regex(spaces_to_drop), "")]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNK,
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def training_batch(
    tokenizer: PreTrainedTokenizerFast, style: Style, rng: random.Random, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, each [rows, length]; the question and the padding carry no loss."""
    problems = rng.choices(PROBLEMS, k=rows)
    questions = [problem.question() for problem in problems]
    texts = [f"{problem.question()}{style.solution(problem, rng)}{EOS}" for problem in problems]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    question_lengths = torch.tensor([len(ids) for ids in tokenizer(questions).input_ids])
    is_question = torch.arange(batch.input_ids.shape[1]) < question_lengths[:, None]
    return batch.input_ids, batch.input_ids.masked_fill(is_question | (batch.attention_mask == 0), -100)


def train(
    recipe: Recipe, style: Style, seed: int, tokenizer: PreTrainedTokenizerFast, label: str
) -> tuple[LlamaForCausalLM, list[float]]:
    """Train one model; returns it with its loss (nats per token) at every step."""
    torch.manual_seed(seed)
    rng = random.Random(f"{seed}/{label}")
    model = recipe.model().train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    warmup = recipe.steps // 20
    schedule = SequentialLR(
        optimiser,
        [
            LinearLR(optimiser, start_factor=1 / max(1, warmup), total_iters=warmup),
            CosineAnnealingLR(optimiser, T_max=recipe.steps - warmup, eta_min=0.02 * recipe.learning_rate),
        ],
        milestones=[warmup],
    )
    losses: list[float] = []
    with Progress(*Progress.get_default_columns(), TextColumn("loss {task.fields[loss]}")) as progress:
        bar = progress.add_task(label, total=recipe.steps, loss="?")
        for step in range(1, recipe.steps + 1):
            ids, labels = training_batch(tokenizer, style, rng, recipe.rows)
            loss = model(input_ids=ids, labels=labels).loss
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
            recent = mean(losses[-50:])
            progress.update(bar, advance=1, loss=f"{recent:.4f}")
            if step % 100 == 0:
                progress.console.print(f"{label} step {step}/{recipe.steps} loss {recent:.4f}")
    return model.eval(), losses


@torch.inference_mode()
def measure(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: list[Problem]
) -> dict[str, float]:
    """Accuracy of the target at T=1, and strict acceptance: the mean of 1 - TV(p, q) over the tokens that it drew."""
    correct, accepted, drawn = 0, 0.0, 0
    for start in range(0, len(problems), 250):
        batch = problems[start : start + 250]
        prompts = tokenizer([problem.question() for problem in batch], padding=True, return_tensors="pt")
        sequences = target.generate(**prompts, max_new_tokens=64)
        completions = sequences[:, prompts.input_ids.shape[1] :]
        texts = tokenizer.batch_decode(completions, skip_special_tokens=True)
        correct += sum(answer(text) == str(problem.truth) for text, problem in zip(texts, batch, strict=True))
        mask = torch.cat([prompts.attention_mask, (completions != tokenizer.pad_token_id).long()], 1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        laws = [
            model(input_ids=sequences, attention_mask=mask, position_ids=positions).logits.softmax(-1)
            for model in (target, draft)
        ]
        acceptance = torch.minimum(*laws).sum(-1)[:, prompts.input_ids.shape[1] - 1 : -1]
        is_drawn = mask[:, prompts.input_ids.shape[1] :].bool()
        accepted += acceptance[is_drawn].sum().item()
        drawn += int(is_drawn.sum())
    return {"accuracy": correct / len(problems), "strict_acceptance": accepted / drawn, "prompts": len(problems)}


def main(argv: Sequence[str] | None = None) -> None:
    """Train, measure and write both models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="hard", help="what the two models are taught")
    parser.add_argument("--output", type=Path, default=EMBEDDED, help="folder for target/, draft/ and run.yaml")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, texts and measurement")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--target-steps", type=int, default=TARGET.steps, help="training steps of the target")
    parser.add_argument("--draft-steps", type=int, default=DRAFT.steps, help="training steps of the draft")
    arguments = parser.parse_args(argv)
    if arguments.preset != "hard" and arguments.output == EMBEDDED:
        parser.error(f"--output: the embedded pair is the hard one; give a folder for --preset {arguments.preset}")

    started = time.perf_counter()
    torch.set_num_threads(arguments.threads)
    preset, tokenizer = PRESETS[arguments.preset], make_tokenizer()
    recipes = {
        "target": replace(TARGET, steps=arguments.target_steps),
        "draft": replace(DRAFT, steps=arguments.draft_steps),
    }
    pair, losses = {}, {}
    for side, recipe in recipes.items():
        pair[side], losses[side] = train(recipe, getattr(preset, side), arguments.seed, tokenizer, side)
        pair[side].generation_config = GENERATION
    torch.manual_seed(arguments.seed)
    problems = random.Random(arguments.seed).sample(PROBLEMS, MEASURED_PROMPTS)
    measured = measure(pair["target"], pair["draft"], tokenizer, problems)
    for side, model in pair.items():
        with replace_folder(arguments.output / side) as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
    record = {
        "preset": arguments.preset,
        "seed": arguments.seed,
        "threads": arguments.threads,
        "styles": {side: asdict(getattr(preset, side)) for side in recipes},
        "recipes": {side: asdict(recipe) for side, recipe in recipes.items()},
        "seconds": round(time.perf_counter() - started),
        "final_loss": {side: mean(values[-50:]) for side, values in losses.items()},
        "measured": measured,
        "provenance": provenance(),
    }
    write_yaml_atomic(arguments.output / "run.yaml", record)
    print(measured)


if __name__ == "__main__":
    main()
