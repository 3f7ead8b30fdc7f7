"""The record: its newest entries, what one holds, a check of all of it, and a proof to take away."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from cli.desk import until
from dashboard.fleet import Fleet
from dashboard.window import Home, Window, needs_browser

pytestmark = [pytest.mark.integration, needs_browser, pytest.mark.uid_free("a page shows the same to every user")]


@pytest.fixture(scope="module")
def fleet(home: Home) -> Fleet:
    fleet = Fleet(home.desk)
    fleet.violate()
    return fleet


def test_refusals_are_in_the_strip_and_can_be_filtered(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/audit").page
    strip = page.get_by_role("img", name="refused")
    expect(strip).to_be_visible()
    expect(strip.locator("rect.bad").first).to_be_attached()
    entries = page.get_by_role("table", name="entries")
    expect(entries).to_contain_text("burglar")
    page.get_by_label("search").fill("Nobody writes to the vault")
    expect(entries.locator("[data-row]").first).to_contain_text("burglar")
    page.get_by_label("search").fill("no such words anywhere")
    expect(page.get_by_text("No entry fits.")).to_be_visible()


def test_every_signed_head_is_shown_page_by_page(window: Window, fleet: Fleet) -> None:
    def signed() -> list[dict[str, Any]]:
        return window.home.get("audit/heads", params={"limit": 500}).json()["items"]

    until(lambda: len(signed()) >= 3)
    oldest = signed()[-1]
    window.page.route(
        "**/audit/heads?*", lambda one: one.continue_(url=one.request.url.replace("limit=200", "limit=2"))
    )
    page = window.enter("#/audit").page
    strip = page.get_by_role("img", name="heads, signed up to")
    expect(strip.locator("rect.head").first).to_be_attached()
    heads = page.get_by_role("table", name="signed heads")
    expect(heads).not_to_contain_text(oldest["root"])
    while page.get_by_role("button", name="Earlier").count():
        page.get_by_role("button", name="Earlier").click()
        expect(page.get_by_role("button", name="Looking …")).to_have_count(0)
    expect(page.get_by_text(", all of them")).to_be_visible()
    page.get_by_role("region", name="signed heads").or_(heads).first.evaluate(
        "box => { box.scrollTop = box.scrollHeight }"
    )
    expect(heads).to_contain_text(oldest["root"])


def test_the_whole_record_is_verified_with_result_and_time(window: Window, fleet: Fleet) -> None:
    page = window.enter("#/audit").page
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("integrity OK")).to_be_visible()
    expect(page.get_by_text("entries hashed again")).to_contain_text(" s, ")


def test_an_entry_is_shown_as_text_and_its_proof_saved(window: Window, fleet: Fleet, tmp_path: Path) -> None:
    page = window.enter("#/audit?seq=5").page
    drawer = page.get_by_role("dialog", name="Entry 5")
    expect(drawer).to_contain_text("body_hash")
    with page.expect_download() as saved:
        drawer.get_by_role("button", name="Export the proof").click()
    saved.value.save_as(tmp_path / "proof.json")
    proof = json.loads((tmp_path / "proof.json").read_text())
    assert proof["proof"]
    assert proof["size"] >= 5
    assert proof["root"]
