"""Where each head looks: a heat map for each layer and head, as a PNG and as a page.

python -m tinygpt.report.attention --checkpoint RUN_DIR_OR_CKPT --text "The cat sat on the mat."
"""

import base64
import json
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinygpt.attention import Manual, Mask, SelfAttention
from tinygpt.errors import UserError, one_line
from tinygpt.flags import Parser
from tinygpt.model.gpt import GPT
from tinygpt.report import page

DPI = 110
CELL = 0.1  # inches of a cell in the PNG, as high as a line of its labels
LARGEST_SIDE = 2**16  # pixels that the PNG's writer can do
LARGEST = 2**28  # pixels, a gigabyte while it is drawn


class Heads(NamedTuple):
    """What the heads of a model take from each token of a text."""

    weights: Tensor  # (layers, H, T, T)
    allowed: Tensor  # (layers, T, T) bool, what the mask lets a token see

    @property
    def entropy(self) -> Tensor:
        """(layers, H): of a token's weights, in bits, the mean over the tokens; 0 where each looks at one token."""
        return torch.special.entr(self.weights).sum(dim=-1).mean(dim=-1) / torch.log(torch.tensor(2.0))

    @property
    def distance(self) -> Tensor:
        """(layers, H): how many tokens back a head looks, weighted, the mean over the tokens."""
        places = torch.arange(self.weights.shape[-1], device=self.weights.device)
        return (self.weights * (places[:, None] - places)).sum(dim=-1).mean(dim=-1)


@dataclass(frozen=True)
class _Recording(Manual):
    """`Manual`, which keeps the weights that it computes."""

    weights_of: list[Tensor] = field(default_factory=list)
    allowed_of: list[Tensor] = field(default_factory=list)

    def weights(self, q: Tensor, k: Tensor, mask: Mask) -> Tensor:
        self.weights_of.append(super().weights(q, k, mask)[0])
        self.allowed_of.append(mask.dense(q.shape[2], k.shape[2], q.device)[0, 0])
        return self.weights_of[-1][None]


def look(model: GPT, ids: Tensor) -> Heads:
    """The attention weights of a text, whatever kernel the model has: they are computed anew by the one written out.

    Args:
        model: in evaluation mode.
        ids: (T,) int64, no more than block_size.
    """
    attentions = [module for module in model.modules() if isinstance(module, SelfAttention)]
    kernels = [attention.kernel for attention in attentions]
    recording = _Recording()
    try:
        for attention in attentions:
            attention.kernel = recording
        with torch.inference_mode():
            model(ids[None])
    finally:
        for attention, kernel in zip(attentions, kernels, strict=True):
            attention.kernel = kernel
    return Heads(torch.stack(recording.weights_of).float(), torch.stack(recording.allowed_of))


def picture(heads: Heads, tokens: list[str], file: Path) -> None:
    """Draw all heads, a row a layer, with the tokens on both axes; what the mask hides is left white.

    Raises:
        UserError: the picture would be too large for a PNG.
    """
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    n_layer, n_head, T, _ = heads.weights.shape
    side = max(T * CELL, 1.6)
    longest = max(map(len, tokens))
    width, height = side + 0.4 + 0.07 * longest, side + 0.5 + 0.07 * longest
    across, down = n_head * width * DPI, n_layer * height * DPI
    if max(across, down) > LARGEST_SIDE or across * down > LARGEST:
        raise UserError(
            f"{T} tokens, {n_layer} layers and {n_head} heads make too large a picture; take a shorter text"
        )
    layout = ConstrainedLayoutEngine(h_pad=0.15, w_pad=0.1)
    figure = Figure(figsize=(n_head * width, n_layer * height), layout=layout)
    panels = figure.subplots(n_layer, n_head, squeeze=False)
    weights = heads.weights.masked_fill(~heads.allowed[:, None], torch.nan).cpu().numpy()
    entropy, distance = heads.entropy.tolist(), heads.distance.tolist()
    image = None
    for layer in range(n_layer):
        for head in range(n_head):
            axis = panels[layer, head]
            image = axis.imshow(weights[layer, head], cmap="viridis_r", norm=PowerNorm(0.5, 0, 1))
            axis.set_title(
                f"layer {layer + 1}, head {head + 1}\n"
                f"entropy {entropy[layer][head]:.2f} bits, distance {distance[layer][head]:.1f}",
                fontsize=7,
            )
            axis.set_xticks(range(T), tokens, rotation=90, fontsize=6, family="monospace", parse_math=False)
            axis.set_yticks(range(T), tokens, fontsize=6, family="monospace", parse_math=False)
            axis.tick_params(length=0, pad=1)
            axis.spines[:].set_color("#cccccc")
    assert image is not None
    figure.colorbar(image, ax=panels, shrink=min(1.0, 4 / (n_layer * height)), aspect=30, pad=0.01).set_label(
        "weight", fontsize=7
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a script that the font has not
        figure.savefig(file, dpi=DPI)


def section(heads: Heads, tokens: list[str], layers: list[int] | None = None) -> str:
    """The heads as a part of a page.

    Args:
        heads: what to draw.
        tokens: on both axes.
        layers: the numbers of these layers, from 1; None: they are all.
    """
    levels = (heads.weights * 255).round().to(torch.uint8).cpu().numpy()
    content: dict[str, Any] = {
        "tokens": tokens,
        "layers": layers or list(range(1, len(heads.weights) + 1)),
        "shape": list(heads.weights.shape),
        "weights": base64.b64encode(levels.tobytes()).decode(),
        "allowed": base64.b64encode(heads.allowed.to(torch.uint8).cpu().numpy().tobytes()).decode(),
        "entropy": [[round(value, 3) for value in row] for row in heads.entropy.tolist()],
        "distance": [[round(value, 3) for value in row] for row in heads.distance.tolist()],
    }
    data = json.dumps(content).replace("<", "\\u003c")  # no token ends the script
    template = Template((Path(__file__).parent / "attention.html").read_text(encoding="utf-8"))
    return template.substitute(data=data)


def visible(text: str) -> str:
    """A token as it can be seen on an axis."""
    shown = text.replace(" ", "␣").replace("\n", "⏎").replace("\t", "⇥")
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown) or "∅"


def main() -> None:
    p = Parser(
        prog="python -m tinygpt.report.attention",
        description="Show where each head of a model looks in a text: a heat map for each layer and head, its entropy"
        " in bits and its mean distance in tokens. Writes a PNG and an HTML page.",
    )
    p.add_argument(
        "--checkpoint",
        type=Path,
        metavar="RUN_DIR_OR_CKPT",
        help="a run's directory (its best checkpoint, else its last) or a .ckpt file; the newest run below runs/",
    )
    p.add_argument("--text", required=True, help="what the model reads, at most block_size tokens")
    p.add_argument(
        "--out",
        type=Path,
        default=Path("attention"),
        metavar="NAME",
        help="writes NAME.png and NAME.html (default: attention)",
    )
    args = p.parse_args()

    import tinygpt

    gpt = tinygpt.load(args.checkpoint, device="cpu", unknown="replace")
    ids = torch.from_numpy(gpt.tokenizer.encode(args.text)).long()
    if not 1 <= len(ids) <= gpt.model.block_size:
        raise UserError(f"--text must be 1 to block_size={gpt.model.block_size} tokens, got {len(ids)}")
    tokens = [visible(gpt.tokenizer.decode([i])) for i in ids.tolist()]
    heads = look(gpt.model, ids)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    png, html = (args.out.with_name(f"{args.out.name}.{ending}") for ending in ("png", "html"))
    heading = f"<h1>Where each head looks</h1><p>{len(tokens)} tokens, {len(heads.weights)} layers</p>"
    page.write(html, "Where each head looks", heading + section(heads, tokens))
    print(html)
    picture(heads, tokens, png)  # which is refused where it would be too large
    print(png)


if __name__ == "__main__":
    try:
        main()
    except (UserError, RuntimeError, ValueError, OSError) as error:
        sys.exit(f"python -m tinygpt.report.attention: {one_line(error)}")
