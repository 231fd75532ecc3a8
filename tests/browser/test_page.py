# Copyright (c) 2026, the ddtree.fleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page of a report in a real browser, from its file: what a reader sees, does and must never meet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from ansible_collections.ddtree.fleet.tests.unit.rollouts import Rollout, both, recorded
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

SHOTS = Path(__file__).resolve().parents[2] / "build" / "browser"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = 1280, 360
EVIL = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=2'>"
# Every text against what is painted below it, as WCAG computes it; gives those below 4.5 to 1.
CONTRAST = """
const channel = (c) => (c /= 255) <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
const below = (element) => {
  for (; element; element = element.parentElement) {
    const found = numbers(getComputedStyle(element).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  }
  return [255, 255, 255];
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), bad = [];
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !element.getClientRects().length) continue;
  const [a, b] = [light(numbers(getComputedStyle(element).color)), light(below(element))].sort((x, y) => y - x);
  if ((a + .05) / (b + .05) < 4.5) bad.push(walker.currentNode.textContent.trim().slice(0, 40));
}
return bad;
"""
TOO_WIDE = """
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth <= width) return [];
return [...document.body.querySelectorAll("*")].filter((element) => element.getBoundingClientRect().right > width + 1)
  .map((element) => `${element.tagName}.${element.className} ${element.textContent.slice(0, 30)}`);
"""


class Page:
    """One browser window on one page."""

    def __init__(self, driver: webdriver.Chrome, path: Path) -> None:
        self.driver = driver
        self.url = path.as_uri()

    def open(self, width: int = DESKTOP, scheme: str = "light", script: bool = True, fragment: str = "") -> None:
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width == PHONE
        )
        self._tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self._tell("Emulation.setScriptExecutionDisabled", value=not script)
        self.driver.get("about:blank")
        self.requests()  # those of the browser's own first page
        self.driver.get(self.url + fragment)

    def _tell(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> List[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def hosts(self) -> List[str]:
        """The hosts that are shown, in their order."""
        return [element.text for element in self.all(".hosts .open") if element.is_displayed()]

    def button(self, host: str) -> WebElement:
        return next(element for element in self.all(".hosts .open") if element.text == host)

    def press(self, key: str) -> None:
        """A key at whatever has the focus."""
        self.driver.switch_to.active_element.send_keys(key)

    def tab_to(self, selector: str) -> None:
        """Reach an element by the Tab key alone, from the top of the page."""
        for _ in range(100):
            self.press(Keys.TAB)
            if self.driver.execute_script("return document.activeElement.matches(arguments[0])", selector):
                return
        raise AssertionError(f"{selector} is not reached by the Tab key")

    def too_wide(self) -> List[str]:
        """What reaches beyond the right edge of the window, if the page can be scrolled sideways at all."""
        found: List[str] = self.driver.execute_script(TOO_WIDE)
        return found

    def shot(self, name: str) -> None:
        height = min(6000, self.driver.execute_script("return document.documentElement.scrollHeight"))
        width = self.driver.execute_script("return innerWidth")
        self._tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width == PHONE
        )
        self.driver.save_screenshot(str(SHOTS / f"{name}.png"))

    def requests(self) -> List[str]:
        """What was asked for since the last call, by any means."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> List[str]:
        return [entry["message"] for entry in self.driver.get_log("browser")]


@pytest.fixture(name="driver", scope="session")
def driver_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    SHOTS.mkdir(parents=True, exist_ok=True)
    options = webdriver.ChromeOptions()
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    yield driver
    driver.quit()


@pytest.fixture(name="page")
def page_fixture(driver: webdriver.Chrome, tmp_path: Path) -> Page:
    """The recorded rollout: one host served, one was rolled back, one was unreachable."""
    return _written(driver, tmp_path, both(recorded())[0])


def _written(driver: webdriver.Chrome, folder: Path, html: str) -> Page:
    path = folder / "run.html"
    path.write_text(html, encoding="utf-8")
    return Page(driver, path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_stands_alone_and_can_be_read_in_both_schemes(page: Page, scheme: str) -> None:
    page.open(scheme=scheme)
    page.shot(scheme)
    page.find("#fold").click()
    for details in page.all("details summary"):
        details.click()
    page.shot(f"{scheme}-open")
    assert page.driver.execute_script(CONTRAST) == []
    assert page.driver.execute_script("return getComputedStyle(document.documentElement).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)"
    )
    assert page.complaints() == []
    assert {url for url in page.requests() if not url.startswith(("data:", "about:"))} == {page.url}


def test_failures_come_first_with_their_reasons(page: Page) -> None:
    page.open()
    assert page.find("h1").text == "2 of 3 hosts failed"
    assert [element.text for element in page.all("main h2")][:2] == ["What failed", "Hosts"]
    assert [element.text for element in page.all("article h3")] == ["b300-2", "rtx6000-1"]
    assert "accept length" in page.all("article")[1].text
    assert "serves again" in page.all("article")[1].text
    assert page.hosts() == ["b300-2", "rtx6000-1", "b300-1", "ct210"]


def test_a_small_screen_needs_no_sideways_scrolling(page: Page) -> None:
    page.open(width=PHONE)
    page.shot("phone")
    page.find("#fold").click()
    for details in page.all("details summary"):
        details.click()
    assert page.too_wide() == []
    page.shot("phone-open")


def test_hosts_are_opened_sorted_and_filtered_by_the_keyboard(page: Page) -> None:
    page.open()
    page.tab_to(".counts [data-outcome=served]")
    page.press(Keys.SPACE)
    assert page.hosts() == ["b300-1"]
    assert page.find("#shown").text == "1 of 4 shown"
    page.press(Keys.SPACE)
    page.tab_to("#find")
    page.press("RTX")
    assert page.hosts() == ["rtx6000-1"]
    page.press(Keys.BACKSPACE * 3)
    page.tab_to(".hosts thead button")
    page.press(Keys.ENTER)
    assert page.hosts() == ["b300-1", "b300-2", "ct210", "rtx6000-1"]
    assert page.find(".hosts thead th").get_attribute("aria-sort") == "ascending"
    page.press(Keys.ENTER)
    assert page.hosts() == ["rtx6000-1", "ct210", "b300-2", "b300-1"]
    page.tab_to(".open")
    assert not page.all(".d.on")
    page.press(Keys.ENTER)
    assert page.driver.switch_to.active_element.get_attribute("aria-expanded") == "true"
    assert "rtx6000-1" in page.driver.switch_to.active_element.text
    page.tab_to(".d.on summary")
    page.press(Keys.ENTER)
    WebDriverWait(page.driver, 5).until(lambda _: page.all(".d.on details[open] tbody tr"))
    assert page.complaints() == []


def test_figures_sort_as_numbers_and_what_is_missing_comes_last(page: Page) -> None:
    page.open()
    times = page.all(".hosts thead button")[-1]
    for expected in (1, -1):
        times.click()
        seconds = [float(cell.get_attribute("data-v")) for cell in page.all(".hosts td[data-label=time][data-v]")]
        assert seconds == sorted(seconds)[::expected]
    page.all(".hosts thead button")[4].click()
    assert set(page.hosts()[:2]) == {"b300-1", "rtx6000-1"}


def test_a_passed_check_shows_what_was_seen(page: Page) -> None:
    page.open()
    page.button("b300-1").click()
    server = page.all(".d.on .gate")[-1]
    server.find_element(By.TAG_NAME, "summary").click()
    WebDriverWait(page.driver, 5).until(lambda _: server.find_elements(By.CSS_SELECTOR, "tbody tr"))
    row = next(row for row in server.find_elements(By.CSS_SELECTOR, "tbody tr") if row.text.startswith("accept length"))
    assert [cell.text for cell in row.find_elements(By.TAG_NAME, "td")][1].endswith(": 8.0")


def test_a_failure_leads_to_its_host(page: Page) -> None:
    page.open()
    page.all("article h3 a")[1].click()
    assert page.driver.switch_to.active_element.text == "rtx6000-1"
    fragment = page.driver.current_url.rpartition("#")[2]
    page.open(fragment=f"#{fragment}")
    assert page.find(f"#{fragment} .open").get_attribute("aria-expanded") == "true"


def test_tables_and_headings_are_what_they_look_like(page: Page) -> None:
    page.open()
    page.find("#fold").click()
    for details in page.all("details summary"):
        details.click()
    assert len(page.all("h1")) == 1
    levels: List[int] = page.driver.execute_script(
        "return [...document.querySelectorAll('h1,h2,h3')].map((h) => +h.tagName[1])"
    )
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:]))
    assert page.all("th") and not page.all("th:not([scope])")
    assert not page.all("svg:not([aria-label])")
    unnamed = "return [...document.querySelectorAll('button,input,a')].filter((e) => !(e.textContent.trim() || e.labels?.length)).length"
    assert page.driver.execute_script(unnamed) == 0


def test_without_its_script_nothing_is_hidden(page: Page) -> None:
    page.open(script=False)
    assert all(details.is_displayed() for details in page.all(".d"))
    assert not page.find(".tools").is_displayed()
    page.open()


def test_hostile_texts_stay_text(driver: webdriver.Chrome, tmp_path: Path) -> None:
    rollout = Rollout()
    long = "x" * 300
    found: Dict[str, Any] = {"name": EVIL, "passed": True, "expected": long, "found": EVIL}
    rollout.ok(EVIL, "sglang_smoke", gate="server", checks=[found, {**found, "passed": False}], not_verified=[EVIL])
    rollout.ok(
        EVIL, "venv_stream", tree={"source": long, "digest": long}, targets={EVIL: {"path": long, "notices": [long]}}
    )
    rollout.failed(EVIL, "fail", f"{EVIL} {long}\n{EVIL}")
    rollout.failed(long, "fail", long)
    page = _written(driver, tmp_path, both(rollout.end())[0])
    page.open(width=PHONE)
    page.find("#fold").click()
    for details in page.all("details summary"):
        details.click()
    assert page.driver.execute_script("return window.pwned") is None
    assert page.all("img") == []
    assert EVIL in page.hosts()[0] or EVIL in page.hosts()[1]
    assert page.too_wide() == []
    assert page.complaints() == []


def test_a_hundred_hosts_open_at_once(driver: webdriver.Chrome, tmp_path: Path) -> None:
    page = _written(driver, tmp_path, both(recorded(100))[0])
    page.open()
    assert len(page.hosts()) == 103
    # The same fault of many hosts is told once.
    assert len(page.all("article")) == 2
    page.shot("hundred")
    page.find("#fold").click()
    assert page.complaints() == []
    page.open(width=PHONE)
    assert page.too_wide() == []
