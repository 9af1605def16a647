"""A Connectome Workbench scene and spec file: one file opens a study's maps on its surfaces.

No `wb_command` writes scenes, so what Workbench restores is written here: the files, a model of the surfaces (a montage
of inflated and midthickness), a tab a map with its layers, and one window that shows all tabs as tiles. What is left
out keeps Workbench's defaults. Paths are relative to the scene, so that a result can be moved.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

from parcellation.files import write_text

STRUCTURES = ("CORTEX_LEFT", "CORTEX_RIGHT")
KINDS = {
    ".surf.gii": "SURFACE",
    ".dlabel.nii": "CONNECTIVITY_DENSE_LABEL",
    ".dscalar.nii": "CONNECTIVITY_DENSE_SCALAR",
    ".shape.gii": "METRIC",
}
LAYERS = 3
WHITE, BLACK = (255, 255, 255), (0, 0, 0)
WIDTH, HEIGHT = 1200, 600
ZOOM = "1.4"  # where a tile has only two views, which then fill it
# Towards the viewer of the left hemisphere's lateral side; Workbench mirrors it for the right.
LATERAL = ((0, -1, 0, 0), (0, 0, 1, 0), (-1, 0, 0, 0), (0, 0, 0, 1))


@dataclass(frozen=True)
class Tab:
    """A tile: its name, and its layers from the top down, each a file's path from the scene's folder."""

    name: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """What all scenes share: files of both hemispheres' surfaces, from the scene's folder, and whom to show.

    inflated, midthickness: left and right; counts: vertices of each; sides: hemispheres that are shown; medial: whether
    they are shown from both sides.
    """

    inflated: tuple[str, str]
    midthickness: tuple[str, str]
    counts: tuple[int, int]
    sides: tuple[int, ...]
    medial: bool = False

    @property
    def few(self) -> bool:
        """Whether a tile has only two views, one of each surface."""
        return len(self.sides) == 1 and not self.medial

    @property
    def files(self) -> tuple[str, ...]:
        """All surface files, the left hemisphere's first."""
        return tuple(pair[side] for side in (0, 1) for pair in (self.inflated, self.midthickness))


def write_scene(path: Path, stage: Stage, scenes: Sequence[tuple[str, Sequence[Tab]]]) -> None:
    """Write a scene file with scenes of these names and tabs."""
    infos = "".join(
        f'<SceneInfo Index="{at}">{_text("Name", name)}{_text("Description", "")}</SceneInfo>'
        for at, (name, _) in enumerate(scenes)
    )
    bodies = "".join(_scene(at, name, stage, tabs) for at, (name, tabs) in enumerate(scenes))
    write_text(
        path,
        f'<?xml version="1.0" encoding="UTF-8"?>\n<SceneFile Version="3"><MetaData/>'
        f"<SceneInfoDirectory>{infos}</SceneInfoDirectory>{bodies}</SceneFile>\n",
    )


def write_spec(path: Path, stage: Stage, maps: Sequence[str]) -> None:
    """Write a spec file of the surfaces and of maps."""
    rows = "".join(
        f'<DataFile Structure="{structure}" DataFileType="{kind}" Selected="true">{escape(name)}</DataFile>\n'
        for name, kind, structure in _known([*stage.files, *maps], stage)
    )
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<CaretSpecFile Version="1.0"><MetaData/>\n{rows}</CaretSpecFile>\n'
    write_text(path, text)


def _known(names: Sequence[str], stage: Stage) -> list[tuple[str, str, str]]:
    """Each file with its kind and structure as Workbench calls them."""
    sides = {name: STRUCTURES[side] for pair in (stage.inflated, stage.midthickness) for side, name in enumerate(pair)}
    kinds = {name: kind for name in names for end, kind in KINDS.items() if name.endswith(end)}
    return [(name, kinds[name], sides.get(name, _structure(name))) for name in names]


def _structure(name: str) -> str:
    return next((STRUCTURES[side] for side, letter in enumerate("LR") if f"_hemi-{letter}_" in name), "ALL")


def _scene(at: int, name: str, stage: Stage, tabs: Sequence[Tab]) -> str:
    session = _class("SessionManager", "m_sessionManager", [
        _array("class", "m_brains", [_brain(stage, tabs)]),
        _array("class", "m_browserTabs", [_tab(number, tab, stage) for number, tab in enumerate(tabs)]),
        _map("class", "browserWindowContentMap", [_content(len(tabs))]),
        _class("BackgroundAndForegroundColorsSceneHelper", "backgroundAndForegroundColors", [
            _array("unsignedByte", f"m_color{what}{where}", [str(value) for value in colour])
            for what, colour in (("Foreground", BLACK), ("Background", WHITE))
            for where in ("Window", "All", "Chart", "Surface", "Volume")
        ]),
    ])  # fmt: skip
    window = _array("class", "m_brainBrowserWindows", [_window(len(tabs))])
    gui = _class("GuiManager", "guiManager", [session, window])
    return f'<Scene Index="{at}" Type="SCENE_TYPE_FULL">{_text("Name", name)}{_text("Description", "")}{gui}</Scene>'


def _brain(stage: Stage, tabs: Sequence[Tab]) -> str:
    maps = list(dict.fromkeys(layer for tab in tabs for layer in tab.layers))
    files = [
        _class("SpecFileDataFile", "specFileDataFile", [
            _value("enumeratedType", "dataFileType", kind),
            _value("enumeratedType", "structure", structure),
            _value("pathName", "fileName", name),
            _value("boolean", "selected", "true"),
        ])
        for name, kind, structure in _known([*stage.files, *maps], stage)
    ]  # fmt: skip
    named = [_value("pathName", "specFileName", ""), _array("class", "dataFilesArray", files)]
    spec = _class("SpecFile", "specFile", named)
    structures = [
        _class("BrainStructure", f"m_brainStructures[{side}]", [
            _value("integer", "numberOfNodes", str(stage.counts[side])),
            _value("enumeratedType", "m_structure", STRUCTURES[side]),
            _value("pathName", "primaryAnatomicalSurface", stage.midthickness[side]),
        ])
        for side in (0, 1)
    ]  # fmt: skip
    montage = _class("Model", "models", [
        _value("enumeratedType", "m_modelType", "MODEL_TYPE_SURFACE_MONTAGE"),
        _value("integer", "montageVersion", "3"),
        _map("enumeratedType", "m_selectedConfigurationType", ["CEREBRAL_CORTEX_CONFIGURATION"] * len(tabs)),
        # Workbench reads the cerebrum's only where the cerebellum's is, and then also the flat maps'.
        _map("class", "m_cerebellarConfiguration", []),
        _map("class", "m_cerebralConfiguration", [_montage(n, tab, stage) for n, tab in enumerate(tabs)]),
        _map("class", "m_flatMapsConfiguration", []),
    ])  # fmt: skip
    parts = [spec, _array("class", "m_brainStructures", structures), _array("class", "models", [montage])]
    return _class("Brain", "m_brains", parts)


def _montage(number: int, tab: Tab, stage: Stage) -> str:
    chosen = zip(("leftFirst", "leftSecond", "rightFirst", "rightSecond"),
                 (stage.inflated[0], stage.midthickness[0], stage.inflated[1], stage.midthickness[1]),
                 strict=True)  # fmt: skip
    flags = {"left": 0 in stage.sides, "right": 1 in stage.sides, "firstSurface": True, "secondSurface": True,
             "lateral": True, "medial": stage.medial}  # fmt: skip
    return _class("SurfaceMontageConfigurationAbstract", f"m_cerebralConfiguration[{number}]", [
        _value("enumeratedType", "m_layoutOrientation", "LANDSCAPE_LAYOUT_ORIENTATION"),
        _class("OverlaySet", "m_overlaySet", [
            _value("integer", "m_numberOfDisplayedOverlays", str(max(LAYERS, len(tab.layers)))),
            _array("class", "m_overlays", [_overlay(layer) for layer in tab.layers]),
        ]),
        *(_class("SurfaceSelectionModel", f"m_{which}SurfaceSelectionModel",
                 [_value("string", "m_selectedSurface", Path(name).name)]) for which, name in chosen),
        *(_value("boolean", f"m_{name}Enabled", str(flag).lower()) for name, flag in flags.items()),
    ])  # fmt: skip


def _overlay(layer: str) -> str:
    return _class("Overlay", "m_overlays", [
        _value("float", "m_opacity", "1"),
        _value("boolean", "m_enabled", "true"),
        _value("pathName", "selectedMapFileNameWithPath", layer),
        _value("string", "selectedMapFile", Path(layer).name),
        _value("integer", "selectedMapIndex", "0"),
    ])  # fmt: skip


def _tab(number: int, tab: Tab, stage: Stage) -> str:
    return _class("BrowserTabContent", "m_browserTabs", [
        _value("integer", "m_tabNumber", str(number)),
        _value("string", "m_userName", tab.name),
        _value("enumeratedType", "m_selectedModelType", "MODEL_TYPE_SURFACE_MONTAGE"),
        _value("enumeratedType", "m_yokingGroup", "YOKING_GROUP_OFF"),
        _class("ViewingTransformations", "m_viewingTransformation", [
            _value("float", "m_scaling", ZOOM if stage.few else "1"),
            _array("float", "m_rotationMatrix", [str(value) for row in LATERAL for value in row]),
        ]),
    ])  # fmt: skip


def _content(tabs: int) -> str:
    """What the one window shows: all tabs as tiles of an automatic grid."""
    return _class("BrowserWindowContent", "m_browserWindowContent", [
        _value("integer", "m_windowIndex", "0"),
        _value("boolean", "m_validFlag", "true"),
        _value("boolean", "m_tileTabsEnabled", str(tabs > 1).lower()),
        _value("enumeratedType", "m_tileTabsConfigurationMode", "AUTOMATIC_GRID"),
        _value("integer", "m_sceneGraphicsWidth", str(WIDTH)),
        _value("integer", "m_sceneGraphicsHeight", str(HEIGHT)),
        _value("integer", "m_sceneSelectedTabIndex", "0"),
        _array("integer", "m_sceneTabIndices", [str(number) for number in range(tabs)]),
    ], version=2)  # fmt: skip


def _window(tabs: int) -> str:
    return _class("BrainBrowserWindow", "m_brainBrowserWindows", [
        _value("integer", "m_browserWindowIndex", "0"),
        _class("BrainBrowserWindowToolBar", "m_toolbar", [
            _array("integer", "tabIndices", [str(number) for number in range(tabs)]),
            _value("integer", "selectedTabIndex", "0"),
        ]),
    ])  # fmt: skip


def _text(tag: str, text: str) -> str:
    return f"<{tag}>{escape(text)}</{tag}>"


def _value(kind: str, name: str, value: str) -> str:
    return f'<Object Type="{kind}" Name={quoteattr(name)}>{escape(value)}</Object>\n'


def _class(kind: str, name: str, parts: Sequence[str], version: int = 1) -> str:
    start = f'<Object Type="class" Class="{kind}" Name={quoteattr(name)} Version="{version}">'
    return f"{start}{''.join(parts)}</Object>\n"


def _array(kind: str, name: str, elements: Sequence[str]) -> str:
    rows = "".join(f'<Element Index="{at}">{element}</Element>' for at, element in enumerate(elements))
    return f'<ObjectArray Type="{kind}" Name={quoteattr(name)} Length="{len(elements)}">{rows}</ObjectArray>\n'


def _map(kind: str, name: str, values: Sequence[str]) -> str:
    rows = "".join(f'<Value Key="{key}">{value}</Value>' for key, value in enumerate(values))
    return f'<ObjectMap Type="{kind}" Name={quoteattr(name)}>{rows}</ObjectMap>\n'
