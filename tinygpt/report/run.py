"""What a run was, how it went and what it has learned: report.html in its directory.

python -m tinygpt.report.run RUN_DIR

Everything in it is read from the run's files, so that a running run has a report, and a dead one too.
"""

import shlex
import sys
from html import escape
from math import log
from pathlib import Path

import torch

from tinygpt.config import typed
from tinygpt.errors import UserError, one_line
from tinygpt.flags import Parser
from tinygpt.generation.streaming import IncrementalDecoder
from tinygpt.generation.text import TextGenerator, load
from tinygpt.report import attention
from tinygpt.report.attention import look, visible
from tinygpt.report.page import Cell, Line, chart, code, section, shown, table, write
from tinygpt.report.record import Run, again, figures, read

LOOKED_AT = 48  # tokens of the passage that the attention maps are of
SURPRISING = 8.0  # bits, from which a token has the strongest colour
LARGE = 2**28  # bytes of a checkpoint, which take seconds to read and to check
HTML = "report.html"


def build(run_dir: Path) -> Path:
    """Write a run's report; returns its path.

    Raises:
        UserError: it is no run's directory, or the run has not begun to train.
    """
    run = read(run_dir)
    body = "\n".join(part for part in (_head(run), _curves(run), _samples(run), _model(run), _rest(run)) if part)
    write(run_dir / HTML, f"{run.name} · tinygpt", body)
    return run_dir / HTML


def _head(run: Run) -> str:
    s, machine = run.summary, run.facts["machine"]
    boxes = "".join(
        f"<div><b>{escape(shown(value)) or 'none yet'}</b><span>{name}</span></div>" for name, value in figures(run)
    )
    where = f"{machine['processor']}, {s['precision']}"
    directory, command = str(run.path), again(run)
    resume = f"python train.py {typed('resume', directory)}"
    longer = ", to a larger trainer.max_steps= or trainer.max_time=" if s["status"] == "completed" else ""
    dial = " (whose minutes= measures anew; what it chose here is in config.yaml)" if " minutes=" in command else ""
    return (
        f'<h1>{escape(run.name)} <span class="status {s["status"]}">{s["status"]}</span></h1>\n'
        f"<p>{escape(where)}</p>\n<p>{escape(s['reason'] or '')}</p>\n"
        f'<div class="figures">{boxes}</div>\n'
        + section(
            "Again",
            f"<p>The same training{dial}, the same run further{longer}, and what it writes:</p>",
            code(command, resume, f"python generate.py --checkpoint {shlex.quote(directory)}"),
        )
    )


def _curves(run: Run) -> str:
    val = run.line("val_loss", "validation", "lines+markers")
    losses = [run.line("train_loss", "training"), val]
    finite = [(y, x) for x, y in zip(val.x, val.y, strict=True)]
    if finite:
        loss, step = min(finite)
        losses.append(Line(f"best, {loss:.4f}", [step], [loss], "markers"))
    rates = [run.line(name) for name in run.records if name == "lr" or name.startswith("lr_")]
    charts = [
        chart("Loss, nats a token", losses, "optimizer step", "nats", wide=True),
        chart("Learning rate", rates, "optimizer step", ""),
        chart("Throughput", [run.line("tokens_per_second")], "optimizer step", "tokens/s"),
        chart("Gradient norm, before clipping", [run.line("grad_norm")], "optimizer step", ""),
        chart("Weight norm", [run.line("weight_norm")], "optimizer step", ""),
    ]
    return section("How it went", f'<div class="charts">{"".join(charts)}</div>')


def _samples(run: Run) -> str:
    if not run.samples:
        return ""
    steps = sorted({sample["step"] for sample in run.samples})
    parts = []
    for prompt in dict.fromkeys(sample["prompt"] for sample in run.samples):
        temperatures = sorted({sample["temperature"] for sample in run.samples})
        by = {(s["step"], s["temperature"]): s["text"] for s in run.samples if s["prompt"] == prompt}
        rows = [
            (step, *(_continued(prompt, by.get((step, temperature), "")) for temperature in temperatures))
            for step in reversed(steps)
        ]
        head = ("step", *(f"temperature {temperature:g}" for temperature in temperatures))
        lines = table(rows[:1], head), table(rows[1:], head)
        parts.append(lines[0])
        if rows[1:]:
            parts.append(f"<details><summary>the {len(rows) - 1} before it</summary>{lines[1]}</details>")
    return section("What it writes", "<p>The same prompts, in grey, continued after each validation.</p>", *parts)


def _continued(prompt: str, text: str) -> Cell:
    return Cell(f"<i>{escape(prompt)}</i>{escape(text)}", "text")


def _model(run: Run) -> str:
    """What the best checkpoint makes of a passage of the validation text; of a large one at the end alone."""
    sizes = [path.stat().st_size for path in run.path.glob("checkpoints/*.ckpt")]
    if run.summary["status"] == "running" and max(sizes, default=0) > LARGE:
        return ""
    try:
        generator = load(run.path, device="cpu")
    except UserError:  # there is no checkpoint yet
        return ""
    ids = torch.tensor(run.facts["data"]["passage"])
    seen = ids[:-1][:LOOKED_AT]
    tokens = [visible(generator.tokenizer.decode([i])) for i in seen.tolist()]
    heads = look(generator.model, seen)
    ends = sorted({0, len(heads.weights) - 1})
    heads = attention.Heads(heads.weights[ends], heads.allowed[ends])
    return section("What surprises it", *_surprise(generator, ids)) + section(
        "Where each head looks", attention.section(heads, tokens, [end + 1 for end in ends])
    )


@torch.inference_mode()
def _surprise(generator: TextGenerator, ids: torch.Tensor) -> tuple[str, str]:
    logprobs = generator.model(ids[None, :-1])[0].float().log_softmax(-1)
    bits = (-logprobs.gather(1, ids[1:, None])[:, 0] / log(2)).tolist()
    guesses = logprobs.argmax(-1).tolist()
    spans, texts = [], IncrementalDecoder(generator.tokenizer)
    texts.add(int(ids[0]))
    for token, bit, guess in zip(ids[1:].tolist(), bits, guesses, strict=True):
        text = texts.add(token) if token != generator.tokenizer.end_of_text else "∎\n"
        told = f"{bit:.1f} bits; likeliest: {visible(generator.tokenizer.decode([guess]))}"
        spans.append(f'<span style="--s:{min(1.0, bit / SURPRISING):.2f}" title="{escape(told)}">{escape(text)}</span>')
    mean = sum(bits) / len(bits)
    told = (
        f"The beginning of the validation text, {mean:.2f} bits a token: the redder a token, the less it was foreseen."
        " Point at one for how much, and for what was likeliest."
    )
    return f"<p>{told}</p>", f'<div class="passage text">{"".join(spans)}</div>'


def _rest(run: Run) -> str:
    data = run.facts["data"]
    splits = ("training", "validation")
    rows = [(name.replace("_", " "), *(data[split][name] for split in splits)) for name in data["training"]]
    machine = run.facts["machine"] | run.facts["versions"]
    later = run.facts["commands"][1:]
    return section(
        "The text",
        table(rows, ("", *splits)),
        f"<p>{data['vocabulary']:,} tokens in the vocabulary; validated on {data['validated_tokens']:,} tokens.</p>",
    ) + section(
        "All settings",
        f"<details><summary>config.yaml</summary>{code(run.config)}</details>",
        f"<details><summary>how it was gone on with</summary>{code(*later)}</details>" if later else "",
        "<details><summary>machine and versions</summary>"
        + table((name.replace("_", " "), str(value)) for name, value in machine.items())
        + "</details>",
    )


def main() -> None:
    p = Parser(prog="python -m tinygpt.report.run", description="Write the report of a run, report.html, anew.")
    p.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="the run's directory")
    print(build(p.parse_args().run_dir))


if __name__ == "__main__":
    try:
        main()
    except (UserError, OSError) as error:
        sys.exit(f"python -m tinygpt.report.run: {one_line(error)}")
