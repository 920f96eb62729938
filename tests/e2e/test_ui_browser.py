"""The dashboard in a browser (headless Chromium): what is seen, clicked, typed and told. One browser for all of these tests.

UMAVEZ_WRITE_SCREENS=1 writes the pictures of docs/ui.md (test_every_page_fits), which are to be looked at before they are committed.
"""
import json
import os
import re

import pytest

from support.browser import Browser
from support.http import make_token
from support.procs import ROOT
from support.ui import Dashboard
from scenery import clear, lay_out

XSS = "<img src=x onerror=\"document.title='owned'\">"
PAGES = ["overview", "runs", "queues", "tasks", "schedules", "workers", "audit"]
SCREENS = ROOT / "docs" / "ui"
WRITE = "UMAVEZ_WRITE_SCREENS" in os.environ
PICTURES = {("light", "overview"): "overview.png", ("light", "run"): "run.png", ("narrow", "run"): "narrow.png", ("pt", "overview"): "pt.png"}


@pytest.fixture(scope="module")
def chromium():
    browser = Browser()
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium, request):
    for world in ("own_lab", "lab", "ui"):                # so that the page is left before its worker ends
        if world in request.fixturenames:
            request.getfixturevalue(world)
    chromium.fresh()
    yield chromium
    said = chromium.log()
    chromium.driver.get("about:blank")
    assert said == [], "the browser's console: nothing may be refused by the policy, nothing raised"


@pytest.fixture
def ui(lab):
    return Dashboard(lab)


def dead_run(lab, text="boom"):
    run = lab.enqueue("e2.t_once", {"e1": "dead", "lua": f"error({json.dumps(text)})"})
    lab.done(run)
    return run


# --- in and out -------------------------------------------------------------------------------------------------------------------------

def test_log_in_and_out(browser, ui):
    browser.get(ui)
    assert browser.wait("#token").get_attribute("type") == "password" and browser.focused() == "token"
    browser.one("#token").send_keys("wrong\n")
    browser.until_text("does not open the dashboard", "#login-fault")
    assert browser.one("#login-fault").get_attribute("role") == "alert"
    browser.one("#token").send_keys(ui.token + "\n")
    browser.wait("nav")
    assert "maria" in browser.text("header")
    assert browser.js("return document.cookie") == "" and ui.token not in browser.js("return JSON.stringify({...localStorage})")
    browser.log()       # the refusals
    browser.one("#logout").click()
    browser.wait("#token")
    browser.log()


def test_a_session_that_ends_asks_again(browser, ui, lab):
    browser.open(ui)
    lab.sql("SELECT umavez.token_revoke(%s)", ui.session["token_id"])
    browser.until(lambda: browser.js("location.hash = location.hash === '#/queues' ? '#/tasks' : '#/queues'") or "has ended" in browser.text(), "the log-in")
    browser.one("#token").send_keys(make_token(lab.env, None, ("ui",), "joana") + "\n")
    browser.wait("nav")
    assert "joana" in browser.text("header") and "read only" in browser.text("header")
    browser.log()


# --- what is seen -----------------------------------------------------------------------------------------------------------------------

def test_the_overview_is_live(browser, ui, lab):
    browser.open(ui)
    browser.until_text("live", "#live")
    for chart in ("throughput", "latency", "depth", "failures", "gate"):
        assert browser.one(f"section[aria-labelledby={chart}-title] svg.plot").get_attribute("role") == "img"
    for run in lab.enqueue_many("e2.t_run", [{"n": n, "lua": "effect() return {}"} for n in range(30)]):
        lab.done(run)
    browser.until(lambda: "e2.t_run" in browser.text("#view"), "the busiest task")
    browser.until(lambda: browser.js("return (document.querySelector('[aria-labelledby=throughput-title] .plot path.s0').getAttribute('d') || '').length") > 20,
                  "a line")
    browser.one("#latency-summary").click()
    browser.until(lambda: len(browser.all("#latency-table tbody tr")) > 1, "the figures as a table")
    label = browser.one("section[aria-labelledby=latency-title] svg.plot").get_attribute("aria-label")
    assert re.search(r"Latency: p50 [\d–]", label)


def test_lists_and_a_runs_page(browser, ui, lab):
    done = lab.enqueue("e2.t_run", {"lua": "effect() return { answer = 42 }"})
    lab.done(done)
    dead = dead_run(lab)
    lab.sql("""INSERT INTO umavez.schedules (task, declared, next_slot)
               VALUES ('e2.nightly', '{"text": "15 3 * * *", "tz": "America/Sao_Paulo", "missed": "once", "each_tenant": false}', '2031-01-01')""")
    browser.open(ui)
    browser.go("/runs")
    assert len(browser.all("#view tbody tr")) == 2
    browser.js("document.querySelector('#f-state').value = 'failed_permanent'")
    browser.one("#f-tenant").send_keys("1\n")
    browser.until(lambda: len(browser.all("#view tbody tr")) == 1, "the filter")
    assert "state=failed_permanent" in browser.driver.current_url and "tenant=1" in browser.driver.current_url
    browser.one(f"#run-{dead}").click()
    browser.wait("ol.life")
    life = browser.text("ol.life")
    for told in ("Enqueued", "Handed to a worker once", "Failed for good: error", "1 attempt", "retention ends"):
        assert told in life, life
    assert "boom" in browser.text(".failure") and "stack traceback" in browser.text(".failure pre")
    assert "failed" in browser.text("[aria-labelledby=ledger]")
    browser.one("#show-args").click()
    browser.until_text('"e1": "dead"', "[aria-labelledby=args]")
    browser.go(f"/run/{done}")
    assert '"answer": 42' in browser.text("[aria-labelledby=outcome]") and "Completed" in browser.text("ol.life")
    browser.go("/run/00000000-0000-0000-0000-000000000000")
    browser.until_text("There is nothing here")
    browser.log()
    for page, text in (("queues", "default"), ("tasks", "e2.t_run"), ("schedules", "e2.nightly"), ("workers", "alive")):
        browser.one(f"#nav-{page}").click()
        browser.loaded()
        browser.until_text(text, "#view")


def test_search(browser, ui, lab):
    dead = dead_run(lab)
    browser.open(ui)
    browser.one("#q").send_keys(dead + "\n")
    browser.wait("ol.life")
    assert browser.driver.current_url.endswith(f"#/run/{dead}")
    browser.one("#q").clear()
    browser.one("#q").send_keys("dead\n")
    browser.until_text("e2.t_once", "#view")
    browser.one("#view tbody a").click()
    browser.until(lambda: browser.all(f"#run-{dead}"), "the runs of that key")
    browser.one("#q").clear()
    browser.one("#q").send_keys("1\n")
    browser.wait("#find-tenant").click()
    browser.until(lambda: browser.all(f"#run-{dead}"), "the tenant's runs")
    browser.one("#q").clear()
    browser.one("#q").send_keys("e2.t_once\n")
    browser.wait("#find-task").click()
    browser.until(lambda: browser.all(f"#run-{dead}"), "the task's runs")


def test_it_goes_on_looking_by_itself(browser, ui, lab):
    """Nothing in the newest thousands of runs fits: the list walks back until it has found what does."""
    old = dead_run(lab)
    lab.sql("""INSERT INTO umavez.finished_runs (run_id, task, queue, priority, status, replay, outcome, deliveries, enqueued_at)
               SELECT gen_random_uuid(), 'x.bulk', 'default', 2, 'completed', true, jsonb_build_object('pad', pad), 1, clock_timestamp()
                 FROM generate_series(1, 9000) g CROSS JOIN LATERAL (SELECT string_agg(md5(g || '.' || n), '') AS pad FROM generate_series(1, 55) n) p""")
    assert lab.value("SELECT max(pg_relation_size(oid)) / 8192 > 1500 FROM pg_class WHERE relname LIKE 'finished_runs_2%' AND relkind = 'r'")
    browser.open(ui)
    browser.go("/runs?task=e2.t_once")
    browser.until(lambda: browser.all(f"#run-{old}"), "the old run")
    browser.until_text("1 run shown", ".foot")
    lab.sql("DELETE FROM umavez.finished_runs WHERE task = 'x.bulk'")


# --- what is done -----------------------------------------------------------------------------------------------------------------------

def confirm(browser, reason):
    """Fills in and confirms the dialog that is open."""
    browser.wait("dialog[open]")
    assert browser.focused() == "act-reason"
    browser.one("#act-reason").send_keys(reason)
    browser.one("#act-go").click()
    browser.gone("dialog")


def test_acts_by_keyboard_and_mouse(browser, ui, lab):
    from selenium.webdriver.common.keys import Keys
    dead = dead_run(lab)
    browser.open(ui)
    browser.go("/queues")
    browser.one("[id='act-default']").click()
    browser.wait("dialog[open]")
    assert "Pause the queue default?" in browser.text("dialog")
    browser.one("#act-go").click()                                  # no reason: the form says so itself
    assert browser.all("dialog[open]")
    browser.press(Keys.ESCAPE)
    browser.gone("dialog")
    assert browser.focused() == "act-default" and lab.value("SELECT count(*)::int FROM umavez.audit") == 0
    browser.press(Keys.ENTER)
    confirm(browser, "a look at the bank")
    browser.until_text("paused by maria", "#view")
    browser.until_text("written to the audit", "#message")
    waiting = lab.enqueue("e2.t_run", {"lua": "effect() return {}"})
    browser.go(f"/run/{waiting}")
    browser.until_text("Its queue is paused by maria", "#view")
    browser.one("#act-cancel").click()
    confirm(browser, "not wanted")
    browser.until_text("Failed for good: cancelled", "ol.life")
    browser.go("/queues")
    browser.one("[id='act-default']").click()
    confirm(browser, "done")
    browser.until_text("served", "#view")
    browser.go(f"/run/{dead}")
    browser.one("#act-discard").click()
    confirm(browser, "known")
    browser.until_text("discarded", ".facts")
    lab.allow("settled_effect")
    browser.one("#act-retry").click()
    confirm(browser, "mended")
    browser.until(lambda: [row.action for row in lab.sql("SELECT action FROM umavez.audit ORDER BY id")] == ["pause", "cancel", "resume", "discard", "retry"],
                  "all acts")
    browser.go("/audit")
    text = browser.text("#view")
    for told in ("Retry", "Discard", "Resume", "Cancel", "Pause", "a look at the bank", "maria (ui token"):
        assert told in text
    lab.env.wait_finished([dead])


def test_what_is_equal_stays_in_its_place(browser, ui, lab):
    """The queues' page is drawn anew with each overview: a button under the finger, and a row that somebody reads, are still there."""
    lab.sql("SELECT umavez.enqueue('x.y', queue => 'x.waiting')")           # its age changes all the time
    browser.open(ui)
    browser.go("/queues")
    browser.wait("[id='act-x.waiting']")
    browser.js("""window.kept = [document.getElementById('act-x.waiting'), document.querySelector('#view tbody tr')];
                  window.age = document.getElementById('view').innerText""")
    browser.one("[id='act-x.waiting']").send_keys("")
    browser.until(lambda: browser.js("return document.getElementById('view').innerText !== window.age"), "another age")
    assert browser.js("return window.kept.map((e) => e.isConnected)") == [True, True] and browser.focused() == "act-x.waiting"
    lab.sql("DELETE FROM umavez.runs WHERE queue = 'x.waiting'")


def test_who_may_only_look_has_no_buttons(browser, ui, lab):
    dead = dead_run(lab)
    browser.open(ui, make_token(lab.env, None, ("ui",), "joana"))
    browser.go("/queues")
    assert not browser.all("[id^='act-']")
    browser.go(f"/run/{dead}")
    assert not browser.all("[id^='act-']") and browser.all("ol.life")


# --- for everybody ------------------------------------------------------------------------------------------------------------------------

def test_hostile_text_stays_text(browser, ui, lab):
    dead = dead_run(lab, XSS)
    lab.sql("SELECT umavez.enqueue(%s, %s::jsonb, queue => %s, run_id => '11111111-1111-4111-8111-111111111111')", XSS, json.dumps({XSS: XSS}), XSS)
    browser.open(ui)
    for address in (f"/run/{dead}", "/run/11111111-1111-4111-8111-111111111111", "/runs?state=available", f"/runs?task={XSS}", "/queues", "/overview", f"/find?q={XSS}"):
        browser.go(address)
        if browser.all("#show-args"):
            browser.one("#show-args").click()
            browser.wait("[aria-labelledby=args] pre")
        assert XSS in browser.text("#view") or "task=" in address or "overview" in address, address
        assert browser.js("return document.querySelectorAll('#view img, #view script').length") == 0
    browser.go("/queues")
    browser.js("document.getElementById('act-' + arguments[0]).click()", XSS)
    confirm(browser, XSS)
    browser.until_text(XSS, "#view .state.paused")
    browser.go("/audit")
    assert XSS in browser.text("#view")
    assert "owned" not in browser.driver.title and browser.js("return document.querySelectorAll('#view img').length") == 0
    lab.sql("DELETE FROM umavez.runs WHERE run_id = '11111111-1111-4111-8111-111111111111'")


def test_by_keyboard_alone(browser, ui, lab):
    """From the top of the page: the skip link, then header, then pages; a new page has the focus on its heading, which is told."""
    from selenium.webdriver.common.keys import Keys
    browser.open(ui)
    browser.driver.refresh()
    browser.wait("nav a[aria-current]")
    browser.loaded()
    browser.top()
    browser.press(Keys.TAB)
    assert browser.js("return document.activeElement.className") == "skip"
    seen = []
    for _ in range(14):
        browser.press(Keys.TAB)
        seen.append(browser.focused())
    assert seen[:6] == ["q", "q-go", "logout", "language-en", "language-pt", "nav-overview"] and seen[6:12] == [f"nav-{p}" for p in PAGES[1:]]
    browser.js("document.getElementById('nav-queues').focus()")
    browser.press(Keys.ENTER)
    browser.loaded()
    assert browser.focused() == "h1" and browser.driver.title == "Queues · umavez"
    browser.press(Keys.TAB)
    browser.press(Keys.TAB)
    assert browser.focused().startswith("act-")


def test_landmarks_names_and_labels(browser, ui, lab):
    dead = dead_run(lab)
    browser.open(ui)
    for address in [f"/{page}" for page in PAGES] + [f"/run/{dead}", "/find?q=dead"]:
        browser.go(address)
        faults = browser.js("""
            const faults = [], has = (css, n) => { if (document.querySelectorAll(css).length !== n) faults.push(css + ': not ' + n); };
            has('main', 1); has('header', 1); has('nav[aria-label]', 1); has('h1', 1); has('[aria-live]', 1);
            for (const e of document.querySelectorAll('input, select, textarea'))
              if (!e.labels.length && !e.getAttribute('aria-label')) faults.push('no label: ' + e.outerHTML);
            for (const e of document.querySelectorAll('button, a'))
              if (!(e.textContent.trim() || e.getAttribute('aria-label'))) faults.push('no name: ' + e.outerHTML);
            for (const e of document.querySelectorAll('table')) if (!e.caption && !e.closest('details')) faults.push('no caption');
            for (const e of document.querySelectorAll('svg')) if (!e.getAttribute('aria-label') && e.getAttribute('aria-hidden') !== 'true') faults.push('svg');
            for (const e of document.querySelectorAll('[aria-labelledby]')) if (!document.getElementById(e.getAttribute('aria-labelledby'))) faults.push(e.outerHTML);
            const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
            if (new Set(ids).size !== ids.length) faults.push('an id twice: ' + ids.filter((id, i) => ids.indexOf(id) !== i));
            if (document.querySelector('[style]')) faults.push('style attribute');
            return faults""")
        assert faults == [], (address, faults)


CONTRAST = """
    const colour = (text) => { const c = document.createElement('canvas').getContext('2d'); c.fillStyle = text; c.fillRect(0, 0, 1, 1); return [...c.getImageData(0, 0, 1, 1).data]; };
    const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4).reduce((s, v, i) => s + v * [0.2126, 0.7152, 0.0722][i], 0);
    const behind = (e) => { for (; e; e = e.parentElement) { const c = colour(getComputedStyle(e).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
    const poor = [];
    for (const e of document.querySelectorAll('body *')) {
      if (!e.checkVisibility() || e.closest('svg, .sr') || ![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
      const [a, b] = [light(colour(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
      if ((a + 0.05) / (b + 0.05) < 4.5) poor.push(e.tagName + '.' + e.className + ': ' + ((a + 0.05) / (b + 0.05)).toFixed(2));
    }
    return [...new Set(poor)]"""


@pytest.mark.parametrize("look, size, theme, accepted", [("light", (1280, 900), "light", "en-GB"), ("dark", (1280, 900), "dark", "en-GB"),
                                                         ("narrow", (360, 740), "dark", "en-GB"), ("pt", (1280, 900), "dark", "pt-BR,pt;q=0.9")])
def test_every_page_fits(browser, lab, look, size, theme, accepted):
    """Nothing sticks out, at 360 pixels and in the longer language; text stands out from its ground, light and dark."""
    ui = Dashboard(lab)
    run = lay_out(lab)
    browser.size(*size)
    browser.theme(theme)
    browser.languages(accepted)
    browser.open(ui)
    assert browser.js("return document.documentElement.lang") == ("pt-BR" if look == "pt" else "en-GB")
    assert browser.text("#nav-queues") == ("Filas" if look == "pt" else "Queues")
    try:
        for address in [f"/{page}" for page in PAGES] + [f"/run/{run}", "/find?q=order-17"]:
            browser.go(address)
            if address == "/overview":
                browser.wait(".tile")
            assert browser.overflow() == [], (look, address)
            assert browser.js("return document.documentElement.scrollWidth") <= size[0], (look, address)
            poor = browser.js(CONTRAST)
            assert poor == [], (look, address, poor)
            picture = PICTURES.get((look, address.split("/")[1].split("?")[0]))
            if WRITE and picture:
                browser.until(lambda: address != "/overview" or browser.js("return document.querySelector('.plot path.s0').getAttribute('d').length") > 200, "lines")
                browser.shot(SCREENS / picture)
    finally:
        browser.driver.get("about:blank")
        clear(lab)


# --- two languages ------------------------------------------------------------------------------------------------------------------------

def test_both_catalogues_have_the_same_keys(browser, ui):
    browser.get(ui)
    browser.wait("#token")
    keys = browser.driver.execute_async_script("""
        const done = arguments[arguments.length - 1];
        Promise.all([import('/ui/en.js'), import('/ui/pt.js')]).then(([en, pt]) => done([en.default, pt.default]))""")
    en, pt = keys
    assert en.keys() == pt.keys()
    for key in en:
        assert en[key] and pt[key], key
        assert set(re.findall(r"\{\w+\}", en[key])) == set(re.findall(r"\{\w+\}", pt[key])), key
    source = "".join(path.read_text() for path in (ROOT / "lua/umavez/ui").glob("*.js") if path.name not in ("en.js", "pt.js"))
    used = set(re.findall(r"""\bt\("([\w.]+)""", source)) | set(re.findall(r'"((?:login|fault|chart|life|act|state|nav|runs|overview|tasks)\.[\w.]+)"', source))
    used |= {f"{key}.{n}" for key in re.findall(r'plural\("([\w.]+)"', source) for n in ("one", "many")} - used
    assert {key for key in used if key not in en and f"{key}.one" not in en} == set(), "keys that no catalogue has"
    browser.log()


def test_the_switch_of_languages(browser, ui):
    browser.open(ui)
    browser.one("#language-pt").click()
    browser.until_text("Visão geral", "nav")
    assert browser.js("return document.documentElement.lang") == "pt-BR" and browser.focused() == "language-pt"
    browser.driver.refresh()
    browser.wait("nav")
    browser.until_text("Visão geral", "nav")
    browser.one("#language-en").click()
    browser.until_text("Overview", "nav")


# --- trouble ------------------------------------------------------------------------------------------------------------------------------

def test_postgresql_goes_and_comes_back(browser, own_lab):
    ui = Dashboard(own_lab)
    browser.open(ui)
    browser.until_text("live", "#live")
    own_lab.env.pg.stop("immediate")
    browser.until_text("PostgreSQL does not answer", "#live")
    browser.go("/queues")
    browser.until_text("PostgreSQL does not answer", "#view")
    own_lab.env.pg.start()
    browser.until(lambda: browser.text("#live") == "live", "the stream")
    browser.until(lambda: browser.all("#view table"), "the page to have come back by itself")
    browser.log()
