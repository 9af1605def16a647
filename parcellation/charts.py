"""Charts of scores, training and numbers of networks, and the sheet of paper that every figure is drawn on."""

import io
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, FAINT = "#222226", "#77777d"
LINE = "#0072B2"
DPI = 160
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "text.parse_math": False,  # names of networks and targets are text, dollars in them too
    "xtick.color": FAINT,
    "ytick.color": FAINT,
}


def reliability_diagram(
    confidence: np.ndarray, accuracy: np.ndarray, count: np.ndarray, hit: str = "share of labels that are right"
) -> bytes:
    """How often labels of a stated confidence are right, one dot a bin; empty bins (count 0) are left out.

    confidence, accuracy: means of each bin; count: vertices in it; hit: what accuracy is the share of, for the axis.
    """
    confidence, accuracy, count = (np.asarray(values, float) for values in (confidence, accuracy, count))
    full = count > 0
    with matplotlib.rc_context(STYLE):
        figure = new_figure(3.4, 3.4)
        axes = add_axes(figure, 0.55, 0.5, 2.75, 2.75)
        low = min(0.5, float(np.min([confidence[full].min(), accuracy[full].min()])) - 0.05) if full.any() else 0.0
        axes.plot([low, 1], [low, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), label="perfectly calibrated")
        axes.plot(confidence[full], accuracy[full], color=LINE, linewidth=1.2)
        size = 12 + 110 * count[full] / max(count.max(initial=1), 1)
        axes.scatter(confidence[full], accuracy[full], s=size, color=LINE, edgecolors="white", linewidths=0.7, zorder=3)
        axes.set(xlabel="stated probability of the label", ylabel=hit)
        axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
        axes.legend(frameon=False, loc="upper left", fontsize=7)
        return png_bytes(figure)


def training_curve(loss: np.ndarray) -> bytes:
    """The training loss of every step, with its running median; not an ELBO, since encoders see batches."""
    loss = np.asarray(loss, float)
    width = max(1, len(loss) // 40)
    smooth = [np.median(loss[max(0, at - width) : at + width + 1]) for at in range(len(loss))]
    with matplotlib.rc_context(STYLE):
        figure = new_figure(5.2, 2.6)
        axes = add_axes(figure, 0.8, 0.45, 4.25, 1.85)
        axes.plot(np.arange(1, len(loss) + 1), loss, color="#B8C6D1", linewidth=0.7)
        axes.plot(np.arange(1, len(loss) + 1), smooth, color=LINE, linewidth=1.4)
        low, high = np.quantile(loss[np.isfinite(loss)], [0, 0.98]) if np.isfinite(loss).any() else (0, 1)
        pad = 0.06 * (high - low) or 1.0
        axes.set(xlabel="step", ylabel="nats", ylim=(low - pad, high + pad))
        axes.set_title("training loss per step (not an ELBO)", fontsize=8, loc="left")
        return png_bytes(figure)


def density_curve(networks: np.ndarray, density: np.ndarray, error: np.ndarray) -> bytes:
    """Held-out log predictive density by number of networks; bars: standard error of the difference from the best."""
    networks, density, error = (np.asarray(values, float) for values in (networks, density, error))
    with matplotlib.rc_context(STYLE):
        figure = new_figure(4.2, 2.8)
        axes = add_axes(figure, 0.85, 0.5, 3.2, 1.95)
        axes.errorbar(networks, density, yerr=error, color=LINE, linewidth=1.2, marker="o", markersize=4, capsize=2)
        axes.set(xlabel="number of networks", ylabel="nats a value", xticks=networks)
        axes.set_title("prediction of people who were left out", fontsize=8, loc="left")
        return png_bytes(figure)


def strips(groups: Mapping[str, np.ndarray], label: str, colours: Sequence | None = None) -> bytes:
    """Numbers of each group as dots in a row of its own, on one axis, with the group's median.

    label: of the axis; colours: of the groups in 0..1, shape (group, 3).
    """
    colours = [LINE] * len(groups) if colours is None else colours
    high, margin = 0.34 * len(groups), 0.25 + 0.075 * max(map(len, groups))
    with matplotlib.rc_context(STYLE):
        figure = new_figure(margin + 3.7, high + 0.75)
        axes = add_axes(figure, margin, 0.5, 3.5, high + 0.15)
        for row, (values, colour) in enumerate(zip(groups.values(), colours, strict=True)):
            _dots(axes, np.asarray(values, float), len(groups) - 1 - row, colour)
        axes.set(xlabel=label, ylim=(-0.6, len(groups) - 0.4))
        axes.set_yticks(range(len(groups)), list(groups)[::-1])
        axes.tick_params(axis="y", length=0, labelcolor=INK)
        axes.grid(axis="x", color="#E4E4E8", linewidth=0.6)
        axes.set_axisbelow(True)
        return png_bytes(figure)


def quantities(values: Mapping[str, np.ndarray]) -> bytes:
    """Different quantities of the same people side by side, each on an axis of its own, with its median."""
    wide = 2.6
    with matplotlib.rc_context(STYLE):
        figure = new_figure(wide * len(values), 1.05)
        for column, (name, numbers) in enumerate(values.items()):
            axes = add_axes(figure, wide * column + 0.15, 0.5, wide - 0.35, 0.48)
            _dots(axes, np.asarray(numbers, float), 0, LINE)
            axes.set(xlabel=name, ylim=(-0.7, 0.7), yticks=[])
            axes.spines["left"].set_visible(False)
            axes.margins(x=0.06)
            axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
        return png_bytes(figure)


def _dots(axes, values: np.ndarray, row: float, colour) -> None:
    """A row of dots, moved up and down in turn so that equal values are seen, and their median."""
    if not len(values):
        return
    order = np.argsort(values, kind="stable")
    shift = 0.22 * (np.arange(len(values)) * 0.618034 % 1 * 2 - 1) * (len(values) > 4)
    axes.scatter(
        values[order], row + shift, s=np.clip(900 / len(values), 5, 22), color=[colour], alpha=0.55, linewidths=0
    )
    median = float(np.median(values))
    axes.plot([median, median], [row - 0.34, row + 0.34], color=INK, linewidth=1.3, solid_capstyle="butt")


def new_figure(wide: float, high: float) -> Figure:
    """An empty white figure, in inches, that needs no display."""
    figure = Figure(figsize=(wide, high), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def add_axes(figure: Figure, x: float, y: float, width: float, height: float):
    """Axes at a place given in inches."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((x / wide, y / high, width / wide, height / high))


def png_bytes(figure: Figure) -> bytes:
    """The figure as a PNG file; equal figures give equal bytes."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
