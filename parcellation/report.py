"""The report: one HTML file with pictures inside, readable without network, on paper and by a screen reader.

Beyond `gallery_limit` subjects it is an index, and every subject has a page of its own, in the folder `report`.
The text is in `report_parts/*.html.jinja`; what the text shows is computed from the `ReportContent` a caller fills.
"""

from pathlib import Path

import jinja2
import yaml
from tqdm import tqdm

from parcellation.files import write_text
from parcellation.report_parts import pictures, tables
from parcellation.report_parts.content import GALLERY_LIMIT, HeldOut, Reliability, ReportContent
from parcellation.report_parts.viewer import viewer

__all__ = ["GALLERY_LIMIT", "PAGES", "HeldOut", "Reliability", "ReportContent", "render", "write_report"]

PAGES = "report"  # folder of the subjects' pages, beside report.html


def write_report(path: Path, content: ReportContent) -> list[Path]:
    """Write report.html, and the pages of subjects where these have pages; pages of an earlier report are removed.

    Returns the subjects' pages.
    """
    folder = path.parent / PAGES
    wanted = []
    if content.paged:
        for number in tqdm(range(len(content.subjects)), desc="report", unit="subject", disable=None):
            page = folder / f"{content.participants[number]['participant_id']}.html"
            wanted.append(page)
            write_text(page, render_subject(content, number))
    write_text(path, render(content))
    for stale in set(folder.glob("sub-*.html")) - set(wanted):
        stale.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
    return wanted


def render(content: ReportContent) -> str:
    """The page as text. Equal content gives equal text; names and texts are escaped."""
    return _template("report.html.jinja").render(
        content=content,
        facts=tables.facts(content),
        checks=tables.checks(content),
        cohort=pictures.cohort_picture(content),
        viewer=viewer(content),
        population=pictures.population_pictures(content),
        shares=tables.network_shares(content.population.probability, content.networks),
        few=pictures.few_pictures(content),
        gallery=pictures.gallery(content),
        differences=pictures.difference_pictures(content),
        sizes=pictures.sizes_picture(content),
        contrasts=pictures.contrast_pictures(content),
        profiles=tables.profile_bars(content.population, content.networks, content.targets.names),
        scores=list(dict.fromkeys(name for row in (content.recovery or {}).values() for name in row)),
        reliability=pictures.reliability_pictures(content),
        held_out=pictures.held_out_pictures(content),
        training=pictures.training_picture(content),
        settings=yaml.safe_dump(dict(content.settings), sort_keys=False, allow_unicode=True),
    )


def render_subject(content: ReportContent, number: int) -> str:
    """The page of one subject, by its place among the participants."""
    row, posterior = content.participants[number], content.subjects[number]
    names = [one["participant_id"] for one in content.participants]
    facts = {
        "sessions": row["sessions"],
        "frames": row["frames"],
        "vertices without data": row["masked_vertices"],
        "mean confidence": row["mean_confidence"],
        "like training (p)": row.get("novelty_p"),
        "amortization gap": row.get("amortization_gap"),
    }
    return _template("subject.html.jinja").render(
        content=content,
        row=row,
        facts=facts,
        before=names[number - 1] if number else None,
        after=names[number + 1] if number + 1 < len(names) else None,
        pictures=pictures.pictures_of(content, row["participant_id"], posterior),
        shares=tables.network_shares(posterior.probability, content.networks),
        profiles=tables.profile_bars(posterior, content.networks, content.targets.names),
        gaps=[one for one in content.gaps or () if one["participant_id"] == row["participant_id"]],
    )


def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("parcellation.report_parts", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = tables.shown
    environment.filters["page"] = lambda name: f"{PAGES}/{name}.html"
    return environment.get_template(name)
