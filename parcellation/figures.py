"""Pictures of maps on the cortex, and the charts beside them, as PNG.

    stage = Stage.of(geometry, region, relief)           # the views, rasterised once
    png = render_labels(stage, probability, networks)    # then painted for any map

Opacity is certainty: a network's colour fades to grey where its probability falls to chance.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from parcellation.maps import Networks
from parcellation.rendering import BLANK, LATERAL, Canvas, Surface, camera_towards, frame_window, look
from parcellation.surfaces import HEMISPHERES, Vertices

INK, FAINT = "#222226", "#77777d"
DPI = 160
MAIN_HEIGHT = 2.9  # inches of a region's close-up
WHOLE_HEIGHT = 1.75  # inches of a whole hemisphere
GAP = 0.12
MARGIN = 0.32  # of the close-up around the region, as a share of the region's size
WHOLE_SHARE = 0.3  # of a hemisphere's vertices, above which a region is shown whole and from both sides
LEGEND_LIMIT, LEGEND_COLUMN = 40, 2.6  # networks; inches
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": INK,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
}

Geometry = Sequence[tuple[np.ndarray, np.ndarray] | None]


@dataclass(frozen=True, eq=False)
class Scene:
    """One panel: a close-up of the region's vertices of one hemisphere, with the hemisphere it was cut from if any.

    here: which vertices of the region are in this hemisphere, bool, shape (region vertex,).
    """

    name: str
    here: np.ndarray
    canvas: Canvas
    overview: Canvas | None


@dataclass(frozen=True, eq=False)
class Stage:
    """The views in which maps of one region are shown."""

    scenes: tuple[Scene, ...]

    @classmethod
    def of(cls, geometry: Geometry, region: Vertices, relief: Sequence | None = None, width: int = 620) -> "Stage":
        """Choose the views of a region.

        geometry: (coordinates (n, 3) in mm, triangles (m, 3)) of the left and the right hemisphere; relief: sulcal
        depth or curvature of both, positive in sulci, or None; width: of a close-up, in pixels. A small region is shown
        close up from where it faces, one that fills much of a hemisphere from both sides.
        """
        scenes: list[Scene] = []
        for side in np.unique(region.hemisphere).tolist():
            surface = _surface(geometry, relief, side)
            here = region.hemisphere == side
            scenes += _scenes(surface, HEMISPHERES[side], LATERAL[side], here, region.number[here], width)
        return cls(tuple(scenes))


def _surface(geometry: Geometry, relief: Sequence | None, side: int) -> Surface:
    coordinates, triangles = geometry[side]
    depth = None if relief is None or relief[side] is None else np.asarray(relief[side], float)
    return Surface(np.asarray(coordinates, float), np.asarray(triangles), depth)


def _scenes(
    surface: Surface, side: str, lateral: np.ndarray, here: np.ndarray, numbers: np.ndarray, width: int
) -> list:
    if len(numbers) > WHOLE_SHARE * len(surface.coordinates):
        views = {"lateral": lateral, "medial": -lateral}
        return [
            Scene(f"{side}, {name}", here, _whole(surface, camera_towards(towards), numbers, width), None)
            for name, towards in views.items()
        ]
    facing = surface.normals[numbers].mean(0)
    name = "lateral" if facing @ lateral > 0 else "medial"
    camera = camera_towards(facing + (lateral if name == "lateral" else -lateral))
    view = look(surface, camera, frame_window(surface.coordinates[numbers], camera, MARGIN), width)
    return [Scene(f"{side}, {name}", here, Canvas(view, numbers), _whole(surface, camera, numbers, width * 3 // 5))]


def _whole(surface: Surface, camera: np.ndarray, numbers: np.ndarray, width: int) -> Canvas:
    window = frame_window(surface.coordinates, camera, 0.02)
    return Canvas(look(surface, camera, window, width), numbers)


def one_hot(keys: np.ndarray, networks: int) -> np.ndarray:
    """Keys 1..K of a map, shape (vertex,), as certain probabilities (vertex, network)."""
    return (np.asarray(keys)[:, None] == np.arange(1, networks + 1)).astype(float)


def render_labels(
    stage: Stage, probability: np.ndarray, networks: Networks, title: str = "", missing: np.ndarray | None = None
) -> bytes:
    """The most probable network of each vertex, as opaque as it is certain, with a legend.

    probability: shape (region vertex, network); missing: vertices without data, which are hatched.
    """
    pictures = [_paint_labels(scene, probability, networks, missing) for scene in stage.scenes]
    columns = _legend_columns(stage)
    figure, _ = _sheet(stage, pictures, title, foot=_legend_height(networks, columns))
    hatched = "; hatched: no data, the population's answer" if missing is not None and np.any(missing) else ""
    _draw_legend(figure, networks, columns, hatched)
    return _png(figure)


def thumbnail(stage: Stage, probability: np.ndarray, networks: Networks, missing: np.ndarray | None = None) -> bytes:
    """The close-ups of `render_labels` alone, side by side, for a gallery."""
    pictures = [_paint_labels(scene, probability, networks, missing)[0] for scene in stage.scenes]
    high = max(picture.shape[0] for picture in pictures)
    padded = [
        np.pad(picture, ((0, high - picture.shape[0]), (0, 4), (0, 0)), constant_values=255) for picture in pictures
    ]
    file = io.BytesIO()
    imsave(file, np.concatenate(padded, 1)[:, :-4], format="png", pil_kwargs={"optimize": True})
    return file.getvalue()


def _paint_labels(scene: Scene, probability: np.ndarray, networks: Networks, missing: np.ndarray | None):
    """(close-up, overview or None) of a label map."""

    def paint(canvas: Canvas, faded: bool) -> np.ndarray:
        shown = canvas.interpolate(np.asarray(probability, float)[scene.here])
        label, chance = shown.argmax(1), 1 / len(networks)
        opacity = np.clip((shown.max(1) - chance) / (1 - chance), 0, 1) if faded else 1.0
        colour = np.asarray(networks.colours, float)[label] / 255
        if missing is not None and faded:
            colour, opacity = _hatch(canvas, np.asarray(missing, float)[scene.here], colour, opacity)
        return canvas.paint(colour, opacity, label if faded else None)

    return paint(scene.canvas, True), scene.overview and paint(scene.overview, False)


def _hatch(canvas: Canvas, missing: np.ndarray, colour: np.ndarray, opacity: np.ndarray):
    """White stripes where most of the vertices around a pixel have no data."""
    y, x = np.divmod(canvas.view.pixel[canvas.inside], canvas.view.shape[1])
    stripe = ((x + y) // 7 % 2 == 0) & (canvas.interpolate(missing) > 0.5)
    return np.where(stripe[:, None], 0.25, colour), np.where(stripe, 0.8, opacity)


def render_scalar(
    stage: Stage,
    values: np.ndarray,
    label: str,
    limits: tuple[float, float],
    colour_map: str = "viridis",
    title: str = "",
) -> bytes:
    """A map of one number a vertex, shape (region vertex,), with a colour bar; values beyond the limits are clipped."""
    mapped = matplotlib.colormaps[colour_map]
    scale = Normalize(*limits, clip=True)

    def paint(canvas: Canvas, here: np.ndarray) -> np.ndarray:
        return canvas.paint(mapped(scale(canvas.interpolate(np.asarray(values, float)[here])))[:, :3])

    pictures = [(paint(s.canvas, s.here), s.overview and paint(s.overview, s.here)) for s in stage.scenes]
    figure, _ = _sheet(stage, pictures, title, foot=0.55)
    _draw_bar(figure, mapped, limits, label)
    return _png(figure)


def render_targets(
    geometry: Geometry, targets: Vertices, values: np.ndarray, label: str, ends: tuple, relief: Sequence | None = None
) -> bytes:
    """One number for each target vertex as dots on the whole cortex, zero in the middle of the colour bar.

    targets: where; values: shape (target vertex,); ends: the colours (0..255) of the most negative and most positive.
    """
    colours = [np.asarray(ends[0]) / 255, (0.97, 0.97, 0.97), np.asarray(ends[1]) / 255]
    mapped = LinearSegmentedColormap.from_list("contrast", colours)
    largest = float(np.quantile(np.abs(values), 0.98)) or 1.0
    scenes, surfaces = [], []
    for side in (side for side in (0, 1) if geometry[side] is not None):
        surface = _surface(geometry, relief, side)
        for name, towards in (("lateral", LATERAL[side]), ("medial", -LATERAL[side])):
            canvas = _whole(surface, camera_towards(towards), np.zeros(0, int), 420)
            scenes.append(Scene(f"{HEMISPHERES[side]}, {name}", targets.hemisphere == side, canvas, None))
            surfaces.append(surface)
    stage = Stage(tuple(scenes))
    pictures = [(scene.canvas.paint(np.zeros((0, 3))), None) for scene in scenes]
    figure, panels = _sheet(stage, pictures, "", foot=0.55)
    for axes, scene, surface in zip(panels, scenes, surfaces, strict=True):
        _draw_dots(axes, scene, surface, targets.number[scene.here], values[scene.here], mapped, largest)
    _draw_bar(figure, mapped, (-largest, largest), label)
    return _png(figure)


def _draw_dots(axes, scene: Scene, surface: Surface, numbers: np.ndarray, values: np.ndarray, mapped, largest) -> None:
    camera = scene.canvas.view.camera
    front = surface.normals[numbers] @ camera[2] > 0.15
    place = surface.coordinates[numbers[front]] @ camera[:2].T
    size = np.clip(9000 / max(len(numbers), 1), 1.5, 18)
    order = np.argsort(np.abs(values[front]))
    place, values = place[order], values[front][order]
    norm = Normalize(-largest, largest)
    axes.scatter(*place.T, s=size, c=values, cmap=mapped, norm=norm, edgecolors=INK, linewidths=0.15)


def render_strip(probability: np.ndarray, networks: Networks) -> bytes:
    """A label map where no surface is known: the vertices in their order as one strip, opacity and legend as usual."""
    probability = np.asarray(probability, float)
    label, chance = probability.argmax(1), 1 / len(networks)
    opacity = np.clip((probability.max(1) - chance) / (1 - chance), 0, 1)[:, None]
    colour = opacity * np.asarray(networks.colours)[label] / 255 + (1 - opacity) * BLANK
    foot = _legend_height(networks, 2)
    figure = _figure(6.4, foot + 0.45)
    axes = _axes(figure, 0.1, foot + 0.08, 6.2, 0.28)
    axes.imshow(colour[None], aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    _draw_legend(figure, networks, 2)
    return _png(figure)


def reliability_diagram(confidence: np.ndarray, accuracy: np.ndarray, count: np.ndarray) -> bytes:
    """How often labels of a stated confidence are right, one dot a bin; empty bins (count 0) are left out.

    confidence, accuracy: means of each bin; count: vertices in it.
    """
    confidence, accuracy, count = (np.asarray(values, float) for values in (confidence, accuracy, count))
    full = count > 0
    with matplotlib.rc_context(STYLE):
        figure = _figure(3.4, 3.4)
        axes = _axes(figure, 0.55, 0.5, 2.75, 2.75)
        low = min(0.5, float(np.min([confidence[full].min(), accuracy[full].min()])) - 0.05) if full.any() else 0.0
        axes.plot([low, 1], [low, 1], color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), label="perfectly calibrated")
        axes.plot(confidence[full], accuracy[full], color="#0072B2", linewidth=1.2)
        size = 12 + 110 * count[full] / max(count.max(initial=1), 1)
        axes.scatter(
            confidence[full], accuracy[full], s=size, color="#0072B2", edgecolors="white", linewidths=0.7, zorder=3
        )
        axes.set(xlabel="stated probability of the label", ylabel="share of labels that are right")
        axes.set(xlim=(low, 1.02), ylim=(low, 1.02), aspect="equal")
        axes.legend(frameon=False, loc="upper left", fontsize=7)
        return _png(figure)


def training_curve(loss: np.ndarray) -> bytes:
    """The training loss of every step, with its running median; not an ELBO, since encoders see batches."""
    loss = np.asarray(loss, float)
    width = max(1, len(loss) // 40)
    smooth = [np.median(loss[max(0, at - width) : at + width + 1]) for at in range(len(loss))]
    with matplotlib.rc_context(STYLE):
        figure = _figure(5.2, 2.6)
        axes = _axes(figure, 0.8, 0.45, 4.25, 1.85)
        axes.plot(np.arange(1, len(loss) + 1), loss, color="#B8C6D1", linewidth=0.7)
        axes.plot(np.arange(1, len(loss) + 1), smooth, color="#0072B2", linewidth=1.4)
        low, high = np.quantile(loss[np.isfinite(loss)], [0, 0.98]) if np.isfinite(loss).any() else (0, 1)
        pad = 0.06 * (high - low) or 1.0
        axes.set(xlabel="step", ylabel="nats", ylim=(low - pad, high + pad))
        axes.set_title("training loss per step (not an ELBO)", fontsize=8, loc="left")
        return _png(figure)


def _sheet(stage: Stage, pictures: list, title: str, foot: float):
    """A figure with the painted panels in one row, and room below; returns it with the panels' axes."""
    panels = []
    close = any(scene.overview for scene in stage.scenes)
    high = MAIN_HEIGHT if close else WHOLE_HEIGHT
    wide = sum(_widths(scene, high)[0] + _widths(scene, high)[1] + 2 * GAP for scene in stage.scenes)
    figure = _figure(wide, foot + high + (0.5 if title else 0.26))
    if title:
        figure.text(GAP / wide, 1 - 0.15 / figure.get_figheight(), title, fontsize=10, weight="bold", va="center")
    x = GAP
    for scene, (main, overview) in zip(stage.scenes, pictures, strict=True):
        side, width = _widths(scene, high)
        if overview is not None:
            inset = _axes(figure, x, foot + (high - WHOLE_HEIGHT) / 2, side - GAP, WHOLE_HEIGHT)
            _mark_window(_show(inset, scene.overview, overview), scene)
        panels.append(_show(_axes(figure, x + side, foot, width, high), scene.canvas, main))
        _frame(panels[-1], scene, boxed=overview is not None)
        x += side + width + 2 * GAP
    return figure, panels


def _widths(scene: Scene, high: float) -> tuple[float, float]:
    """Inches of the overview (0 without one) and of the close-up."""

    def aspect(canvas: Canvas) -> float:
        return canvas.view.shape[1] / canvas.view.shape[0]

    side = 0.0 if scene.overview is None else aspect(scene.overview) * WHOLE_HEIGHT + GAP
    return side, aspect(scene.canvas) * high


def _show(axes, canvas: Canvas, picture: np.ndarray):
    axes.imshow(picture, extent=canvas.view.window, interpolation="antialiased", aspect="auto")
    axes.set(xticks=[], yticks=[], xlim=canvas.view.window[:2], ylim=canvas.view.window[2:])
    axes.spines[:].set_visible(False)
    return axes


def _mark_window(axes, scene: Scene) -> None:
    left, right, bottom, top = scene.canvas.view.window
    axes.add_patch(Rectangle((left, bottom), right - left, top - bottom, fill=False, edgecolor=INK, linewidth=0.8))


def _frame(axes, scene: Scene, boxed: bool) -> None:
    axes.spines[:].set_visible(boxed)
    axes.spines[:].set(color=INK, linewidth=0.8)
    offset = ScaledTranslation(0, 0.04, axes.figure.dpi_scale_trans)
    front_left = scene.canvas.view.camera[0] @ [0, 1, 0] < 0
    ends = ("anterior", "posterior") if front_left else ("posterior", "anterior")
    for at, text in enumerate((f"← {ends[0]}", scene.name, f"{ends[1]} →")):
        style = {"ha": ("left", "center", "right")[at], "fontsize": 7.5 if at == 1 else 6.5, "color": FAINT}
        axes.text(at / 2, 1, text, transform=axes.transAxes + offset, va="bottom", **style)


def _legend_columns(stage: Stage) -> int:
    high = MAIN_HEIGHT if any(scene.overview for scene in stage.scenes) else WHOLE_HEIGHT
    wide = sum(sum(_widths(scene, high)) + 2 * GAP for scene in stage.scenes)
    return max(1, int(wide // LEGEND_COLUMN))


def _legend_height(networks: Networks, columns: int) -> float:
    return 0.38 + 0.2 * -(-len(networks) // columns) if len(networks) <= LEGEND_LIMIT else 0.4


def _draw_legend(figure: Figure, networks: Networks, columns: int, hatched: str = "") -> None:
    """A ramp from chance to certainty for each network, in rows above one another."""
    if len(networks) > LEGEND_LIMIT:
        figure.text(0.02, 0.1 / figure.get_figheight(), f"{len(networks)} networks, in the colours of their TSV file")
        return
    rows = -(-len(networks) // columns)
    ramp = np.linspace(0, 1, 64)[None, :, None]
    for at, (name, colour) in enumerate(zip(networks.names, np.asarray(networks.colours) / 255, strict=True)):
        column, row = divmod(at, rows)
        x, y = GAP + column * LEGEND_COLUMN, 0.26 + 0.2 * (rows - 1 - row)
        axes = _axes(figure, x, y, 0.8, 0.12)
        axes.imshow(ramp * colour + (1 - ramp) * BLANK, aspect="auto", extent=(0, 1, 0, 1))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=FAINT, linewidth=0.4)
        axes.text(1.08, 0.45, name, transform=axes.transAxes, va="center", fontsize=7.5)
        if column == 0 and row == rows - 1:
            note = {"transform": axes.transAxes, "fontsize": 6, "color": FAINT, "va": "top"}
            axes.text(0, -0.25, f"{1 / len(networks):.2g}", **note)
            axes.text(0.97, -0.25, f"1   probability of the label{hatched}", **note)


def _draw_bar(figure: Figure, mapped, limits: tuple[float, float], label: str) -> None:
    axes = _axes(figure, GAP + 0.1, 0.32, 2.2, 0.11)
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=mapped, aspect="auto", extent=(*limits, 0, 1))
    axes.set_yticks([])
    axes.tick_params(labelsize=6.5, length=2, width=0.5)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.spines[:].set(color=FAINT, linewidth=0.4)
    axes.text(1.04, 0.45, label, transform=axes.transAxes, va="center", fontsize=7.5)


def _figure(wide: float, high: float) -> Figure:
    figure = Figure(figsize=(wide, high), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(figure: Figure, x: float, y: float, width: float, height: float):
    """Axes at a place given in inches."""
    wide, high = figure.get_size_inches()
    return figure.add_axes((x / wide, y / high, width / wide, height / high))


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", pil_kwargs={"optimize": True})
    return file.getvalue()
