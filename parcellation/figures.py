"""Pictures of maps on the cortex, and the charts beside them, as PNG.

    stage = Stage.of(geometry, region, relief)           # the views, rasterised once
    png = render_labels(stage, probability, networks)    # then painted for any map

Opacity is certainty: a network's colour fades to grey where its probability falls to chance.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import matplotlib
import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.image import imsave
from matplotlib.patches import Rectangle
from matplotlib.transforms import ScaledTranslation

from parcellation.charts import FAINT, INK, add_axes, new_figure, png_bytes
from parcellation.label_table import Networks
from parcellation.meshes import HEMISPHERES
from parcellation.rendering import BLANK, LATERAL, WHOLE_SHARE, Canvas, Surface, camera_towards, frame_window, look
from parcellation.surfaces import Vertices

MAIN_HEIGHT = 2.9  # inches of a region's close-up
WHOLE_HEIGHT = 1.75  # inches of a whole hemisphere
GAP = 0.12
MARGIN = 0.32  # of the close-up around the region, as a share of the region's size
LEGEND_LIMIT, LEGEND_COLUMN = 40, 2.6  # networks; inches
PLAIN = {"parse_math": False}  # names are text, dollars in them too
Geometry = Sequence[tuple[np.ndarray, np.ndarray] | None]


@dataclass(frozen=True, eq=False)
class Scene:
    """One panel: the region's vertices of one hemisphere, with the hemisphere that a close-up was cut from.

    side: 0 left, 1 right; face: `lateral` or `medial`; close: whether it is cut out.
    """

    surface: Surface
    side: int
    face: str
    close: bool
    canvas: Canvas
    overview: Canvas | None = None

    @property
    def name(self) -> str:
        """What is seen, such as `left, lateral`."""
        return f"{HEMISPHERES[self.side]}, {self.face}"


@dataclass(frozen=True, eq=False)
class Stage:
    """The views in which maps of one region are shown."""

    scenes: tuple[Scene, ...]
    hemisphere: np.ndarray  # of the region's vertices

    @classmethod
    def of(cls, geometry: Geometry, region: Vertices, relief: Sequence | None = None, width: int = 620) -> "Stage":
        """Choose the views of a region.

        geometry: (coordinates (n, 3) in mm, triangles (m, 3)) of the left and the right hemisphere; relief: sulcal
        depth or curvature of both, positive in sulci, or None; width: of a close-up, in pixels. A small region is shown
        close up from where it faces, one that fills much of a hemisphere from both sides.
        """
        scenes: list[Scene] = []
        for side in np.unique(region.hemisphere).tolist():
            surface, numbers = _surface(geometry, relief, side), region.number[region.hemisphere == side]
            whole = _fills(numbers, surface.coordinates)
            scenes += (
                _both_faces(surface, side, numbers, width) if whole else [_close_up(surface, side, numbers, width)]
            )
        return cls(tuple(scenes), region.hemisphere)

    @classmethod
    def cortex(cls, geometry: Geometry, relief: Sequence | None = None, width: int = 420) -> "Stage":
        """Both faces of every hemisphere that is known, for `render_targets`; arguments as in `of`."""
        sides = [side for side in (0, 1) if geometry[side] is not None]
        faces = [_both_faces(_surface(geometry, relief, side), side, np.zeros(0, int), width) for side in sides]
        return cls(tuple(scene for pair in faces for scene in pair), np.zeros(0, np.uint8))

    def close_ups(self) -> "Stage":
        """The same views without the hemispheres that they were cut from."""
        return Stage(tuple(replace(scene, overview=None) for scene in self.scenes), self.hemisphere)

    def paint(self, painter: Callable, *maps: np.ndarray) -> list[tuple[np.ndarray, np.ndarray | None]]:
        """The panel and the overview, if any, of every scene.

        painter: gives the picture of a canvas, its hemisphere's part of the maps, and whether it is a panel.
        """
        pictures = []
        for scene in self.scenes:
            parts = [np.asarray(values, float)[self.hemisphere == scene.side] for values in maps]
            overview = scene.overview and painter(scene.overview, *parts, False)
            pictures.append((painter(scene.canvas, *parts, True), overview))
        return pictures


def shown_whole(geometry: Geometry, region: Vertices) -> bool:
    """Whether a stage shows any hemisphere of a region whole, from both sides."""
    sides = np.unique(region.hemisphere).tolist()
    return any(_fills(region.number[region.hemisphere == side], geometry[side][0]) for side in sides)


def _fills(numbers: np.ndarray, coordinates: np.ndarray) -> bool:
    """Whether vertices are so much of a hemisphere that a close-up of them makes no sense."""
    return len(numbers) > WHOLE_SHARE * len(coordinates)


def _surface(geometry: Geometry, relief: Sequence | None, side: int) -> Surface:
    coordinates, triangles = geometry[side]
    depth = None if relief is None or relief[side] is None else np.asarray(relief[side], float)
    return Surface(np.asarray(coordinates, float), np.asarray(triangles), depth)


def _both_faces(surface: Surface, side: int, numbers: np.ndarray, width: int) -> list[Scene]:
    views = {"lateral": LATERAL[side], "medial": -LATERAL[side]}
    return [
        Scene(surface, side, face, False, _whole(surface, camera_towards(towards), numbers, width))
        for face, towards in views.items()
    ]


def _close_up(surface: Surface, side: int, numbers: np.ndarray, width: int) -> Scene:
    facing = surface.normals[numbers].mean(0)
    lateral = facing @ LATERAL[side] > 0
    # Half-way between where the region faces and the usual view, so that the hemisphere still looks familiar.
    camera = camera_towards(facing + (LATERAL[side] if lateral else -LATERAL[side]))
    view = look(surface, camera, frame_window(surface.coordinates[numbers], camera, MARGIN), width)
    overview = _whole(surface, camera, numbers, width * 3 // 5)
    return Scene(surface, side, "lateral" if lateral else "medial", True, Canvas(view, numbers), overview)


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
    pictures = _paint_labels(stage, probability, networks, missing)
    columns = _legend_columns(stage)
    figure, _ = _sheet(stage, pictures, title, foot=_legend_height(networks, columns))
    hatched = "; hatched: no data" if missing is not None and np.any(missing) else ""
    _draw_legend(figure, networks, columns, hatched)
    return png_bytes(figure)


def thumbnail(stage: Stage, probability: np.ndarray, networks: Networks, missing: np.ndarray | None = None) -> bytes:
    """The close-ups of `render_labels` alone, side by side, for a gallery."""
    pictures = [picture for picture, _ in _paint_labels(stage.close_ups(), probability, networks, missing)]
    high = max(picture.shape[0] for picture in pictures)
    padded = [
        np.pad(picture, ((0, high - picture.shape[0]), (0, 4), (0, 0)), constant_values=255) for picture in pictures
    ]
    return _image_bytes(np.concatenate(padded, 1)[:, :-4])


def _image_bytes(picture: np.ndarray) -> bytes:
    file = io.BytesIO()
    imsave(file, picture, format="png")
    return file.getvalue()


def _paint_labels(stage: Stage, probability: np.ndarray, networks: Networks, missing: np.ndarray | None) -> list:
    """The pictures of a label map; an overview is too small for opacity, borders and hatching."""
    missing = np.zeros(len(probability)) if missing is None else missing

    def paint(canvas: Canvas, probability: np.ndarray, missing: np.ndarray, panel: bool) -> np.ndarray:
        shown = canvas.interpolate(probability)
        label, opacity = shown.argmax(1), _certainty(shown) if panel else 1.0
        colour = np.asarray(networks.colours, float)[label] / 255
        if panel:
            colour, opacity = _hatch(canvas, missing, colour, opacity)
        return canvas.paint(colour, opacity, label if panel else None)

    return stage.paint(paint, probability, missing)


def _hatch(canvas: Canvas, missing: np.ndarray, colour: np.ndarray, opacity: np.ndarray):
    """Dark stripes where most of the vertices around a pixel have no data."""
    y, x = np.divmod(canvas.view.pixel[canvas.inside], canvas.view.shape[1])
    stripe = ((x + y) // 7 % 2 == 0) & (canvas.interpolate(missing) > 0.5)
    return np.where(stripe[:, None], 0.25, colour), np.where(stripe, 0.8, opacity)


def render_scalar(
    stage: Stage,
    values: np.ndarray,
    label: str,
    limits: tuple[float, float],
    ends: tuple | None = None,
    title: str = "",
) -> bytes:
    """A map of one number a vertex, shape (region vertex,), with a colour bar; values beyond the limits are clipped.

    ends: colours (0..255) of the lower and the upper limit, pale between them; viridis if None.
    """
    mapped = matplotlib.colormaps["viridis"] if ends is None else _between(ends)
    scale = Normalize(*limits, clip=True)

    def paint(canvas: Canvas, values: np.ndarray, panel: bool) -> np.ndarray:
        return canvas.paint(mapped(scale(canvas.interpolate(values)))[:, :3])

    pictures = stage.paint(paint, values)
    figure, _ = _sheet(stage, pictures, title, foot=0.66)
    _draw_bar(figure, mapped, limits, label)
    return png_bytes(figure)


def render_targets(stage: Stage, targets: Vertices, values: np.ndarray, label: str, ends: tuple) -> bytes:
    """One number for each target vertex as dots on the whole cortex, zero in the middle of the colour bar.

    stage: see `Stage.cortex`; targets: where; values: shape (target vertex,); ends: the colours (0..255) of the most
    negative and the most positive.
    """
    mapped = _between(ends)
    largest = float(np.quantile(np.abs(values), 0.98)) or 1.0
    pictures = [(scene.canvas.paint(np.zeros((0, 3))), None) for scene in stage.scenes]
    figure, panels = _sheet(stage, pictures, "", foot=0.66)
    for axes, scene in zip(panels, stage.scenes, strict=True):
        here = targets.hemisphere == scene.side
        dots = {"cmap": mapped, "norm": Normalize(-largest, largest), "s": np.clip(20000 / len(targets), 1.5, 18)}
        _draw_dots(axes, scene, targets.number[here], values[here], dots)
    _draw_bar(figure, mapped, (-largest, largest), label)
    return png_bytes(figure)


def _between(ends: tuple) -> LinearSegmentedColormap:
    """Colours from one end to the other, pale in the middle."""
    colours = [np.asarray(ends[0]) / 255, (0.97, 0.97, 0.97), np.asarray(ends[1]) / 255]
    return LinearSegmentedColormap.from_list("contrast", colours)


def _draw_dots(axes, scene: Scene, numbers: np.ndarray, values: np.ndarray, dots: dict) -> None:
    """The dots that face the viewer, the strongest on top."""
    camera, surface = scene.canvas.view.camera, scene.surface
    seen = np.flatnonzero(surface.normals[numbers] @ camera[2] > 0.15)
    seen = seen[np.argsort(np.abs(values[seen]), kind="stable")]
    place = surface.coordinates[numbers[seen]] @ camera[:2].T
    axes.scatter(*place.T, c=values[seen], edgecolors=INK, linewidths=0.15, **dots)


def render_strip(probability: np.ndarray, networks: Networks) -> bytes:
    """A label map where no surface is known: the vertices in their order as one strip, opacity and legend as usual."""
    foot = _legend_height(networks, 2)
    figure = new_figure(6.4, foot + 0.45)
    axes = add_axes(figure, 0.1, foot + 0.08, 6.2, 0.28)
    axes.imshow(_strip(probability, networks), aspect="auto", interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    _draw_legend(figure, networks, 2)
    return png_bytes(figure)


def strip_thumbnail(probability: np.ndarray, networks: Networks) -> bytes:
    """The strip of `render_strip` alone, two pixels a vertex, for a gallery."""
    return _image_bytes(np.repeat(np.repeat(_strip(probability, networks), 2, 1), max(24, len(probability) // 5), 0))


def _strip(probability: np.ndarray, networks: Networks) -> np.ndarray:
    """Colours of the vertices in 0..1, shape (1, vertex, 3)."""
    probability = np.asarray(probability, float)
    opacity = _certainty(probability)[:, None]
    colour = np.asarray(networks.colours, float)[probability.argmax(1)] / 255
    return (opacity * colour + (1 - opacity) * BLANK)[None]


def _certainty(probability: np.ndarray) -> np.ndarray:
    """Where the largest probability (..., network) lies between chance, 0, and certainty, 1."""
    chance = 1 / probability.shape[-1]
    return np.clip((probability.max(-1) - chance) / (1 - chance), 0, 1)


def _sheet(stage: Stage, pictures: list, title: str, foot: float):
    """A figure with the painted panels in one row, and room below; returns it with the panels' axes."""
    panels = []
    high, wide = _panel_height(stage), _sheet_width(stage)
    figure = new_figure(wide, foot + high + (0.5 if title else 0.26))
    if title:
        style = {"fontsize": 10, "weight": "bold", "va": "center", **PLAIN}
        figure.text(GAP / wide, 1 - 0.15 / figure.get_figheight(), title, **style)
    x = GAP
    for scene, (main, overview) in zip(stage.scenes, pictures, strict=True):
        side, width = _widths(scene, high)
        if overview is not None:
            inset = add_axes(figure, x, foot + (high - WHOLE_HEIGHT) / 2, side - GAP, WHOLE_HEIGHT)
            _mark_window(_show(inset, scene.overview, overview), scene)
        panels.append(_show(add_axes(figure, x + side, foot, width, high), scene.canvas, main))
        _frame(panels[-1], scene)
        x += side + width + 2 * GAP
    return figure, panels


def _panel_height(stage: Stage) -> float:
    return MAIN_HEIGHT if any(scene.close for scene in stage.scenes) else WHOLE_HEIGHT


def _sheet_width(stage: Stage) -> float:
    return sum(sum(_widths(scene, _panel_height(stage))) + 2 * GAP for scene in stage.scenes)


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


def _frame(axes, scene: Scene) -> None:
    axes.spines[:].set_visible(scene.close)
    axes.spines[:].set(color=INK, linewidth=0.8)
    offset = ScaledTranslation(0, 0.04, axes.figure.dpi_scale_trans)
    front_left = scene.canvas.view.camera[0] @ [0, 1, 0] < 0
    ends = ("anterior", "posterior") if front_left else ("posterior", "anterior")
    for at, text in enumerate((f"← {ends[0]}", scene.name, f"{ends[1]} →")):
        style = {"ha": ("left", "center", "right")[at], "fontsize": 7.5 if at == 1 else 6.5, "color": FAINT}
        axes.text(at / 2, 1, text, transform=axes.transAxes + offset, va="bottom", **style)


def _legend_columns(stage: Stage) -> int:
    return max(1, int(_sheet_width(stage) // LEGEND_COLUMN))


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
        axes = add_axes(figure, x, y, 0.8, 0.12)
        axes.imshow(ramp * colour + (1 - ramp) * BLANK, aspect="auto", extent=(0, 1, 0, 1))
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set(color=FAINT, linewidth=0.4)
        axes.text(1.08, 0.45, name, transform=axes.transAxes, va="center", fontsize=7.5, **PLAIN)
        if column == 0 and row == rows - 1:
            note = {"transform": axes.transAxes, "fontsize": 6, "color": FAINT, "va": "top"}
            axes.text(0, -0.25, f"{1 / len(networks):.2g}", **note)
            axes.text(0.97, -0.25, f"1   probability of the label{hatched}", **note)


def _draw_bar(figure: Figure, mapped, limits: tuple[float, float], label: str) -> None:
    axes = add_axes(figure, GAP + 0.1, 0.32, 2.2, 0.11)
    axes.imshow(np.linspace(0, 1, 256)[None], cmap=mapped, aspect="auto", extent=(*limits, 0, 1))
    axes.set_yticks([])
    axes.tick_params(labelsize=6.5, length=2, width=0.5)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5))
    axes.spines[:].set(color=FAINT, linewidth=0.4)
    axes.text(0, 1.4, label, transform=axes.transAxes, fontsize=7.5, **PLAIN)
