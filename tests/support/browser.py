"""A headless Chromium that tests drive (Debian's chromium, chromium-driver, python3-selenium): one for all tests of a process.

    browser.open(ui)             # the dashboard of a worker, logged in by its form
    browser.go("/runs?state=failed_permanent")
    browser.text("h1")
"""
import os
import shutil
import subprocess

from . import procs
from .procs import wait_until

MISSING = "the tests of the dashboard need {}: `./setup deps test` installs it"
# Nothing of the browser's own calls out, and nothing of it stays.
FLAGS = ["--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--disable-dev-shm-usage", "--disable-extensions", "--disable-default-apps", "--no-default-browser-check", "--mute-audio",
         "--hide-scrollbars", "--force-color-profile=srgb", "--font-render-hinting=none", "--window-size=1280,900"]
PATIENCE = 20


def _need(name):
    found = shutil.which(name)
    assert found, MISSING.format({"chromedriver": "chromium-driver"}.get(name, name))
    return found


def _can_sandbox():
    """Chromium's sandbox wants an ordinary user, and namespaces that not every place gives (a chroot does not). Only our own pages are opened."""
    return os.geteuid() != 0 and subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True).returncode == 0


class Browser:
    def __init__(self):
        try:
            from selenium import webdriver
        except ImportError:
            raise AssertionError(MISSING.format("python3-selenium")) from None
        self.home = procs.private_dir("br-")
        options = webdriver.ChromeOptions()
        options.binary_location = _need("chromium")
        for flag in FLAGS + [f"--user-data-dir={self.home}"] + ([] if _can_sandbox() else ["--no-sandbox"]):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(service=webdriver.chrome.service.Service(_need("chromedriver")), options=options)
        self.size(1280, 900)

    def close(self):
        self.driver.quit()
        procs.remove_dir(self.home)

    # looks

    def size(self, width, height):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def theme(self, name):
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def languages(self, accepted):
        """What the browser would rather have, as in Accept-Language."""
        agent = self.driver.execute_script("return navigator.userAgent")
        self.cdp("Emulation.setUserAgentOverride", userAgent=agent, acceptLanguage=accepted)

    def cdp(self, command, **parameters):
        return self.driver.execute_cdp_cmd(command, parameters)

    def fresh(self):
        """As a browser that has never been here."""
        self.driver.get("about:blank")
        self.cdp("Network.clearBrowserCookies")
        self.size(1280, 900)
        self.theme("light")
        self.languages("en-GB")
        self.log()

    def log(self):
        """What the console was told since the last look: what is wrong."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    # pages

    def get(self, ui, path="/ui/"):
        self.ui = ui
        self.driver.get(f"http://{ui.host}{path}")

    def open(self, ui, token=None):
        """The dashboard, logged in by its form."""
        self.get(ui)
        self.js("try { localStorage.clear() } catch {}")
        self.get(ui)
        self.wait("#token").send_keys(token or ui.token)
        self.one("#login-go").click()
        self.wait("nav a[aria-current]")
        self.loaded()
        self.log()      # that one was not logged in is told there, too

    def go(self, address):
        """#/… of this dashboard, by its address."""
        self.js("location.hash = '#' + arguments[0]", address)
        self.loaded()

    def loaded(self):
        self.until(lambda: self.js("return !!document.querySelector('#view') && !document.querySelector('#view > .loading')"), "the page to be drawn")

    # elements

    def js(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def all(self, css):
        return self.driver.find_elements("css selector", css)

    def one(self, css):
        found = self.all(css)
        assert found, f"no {css} on the page:\n{self.page()}"
        return found[0]

    def wait(self, css):
        self.until(lambda: self.all(css), css)
        return self.one(css)

    def gone(self, css):
        self.until(lambda: not self.all(css), f"{css} to be gone")

    def text(self, css="body"):
        """What a container says, read at one moment, while the page may change."""
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", css)

    def page(self):
        return self.text()[:3000]

    def until_text(self, text, css="body"):
        self.until(lambda: text in self.text(css), f"{text!r} in {css}")

    def until(self, look, what):
        wait_until(look, PATIENCE, lambda: f"{what}; the page says:\n{self.page()}\nconsole: {self.log()}")

    def press(self, *keys):
        """Keys where the focus is."""
        from selenium.webdriver.common.action_chains import ActionChains
        ActionChains(self.driver).send_keys(*keys).perform()

    def top(self):
        """Tab begins at the top of the page. (Where it begins in a page that nobody has touched depends on Chromium's version.)"""
        self.js("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")

    def focused(self):
        return self.js("return document.activeElement.id || document.activeElement.tagName.toLowerCase()")

    def overflow(self):
        """Elements that stick out of the page to the right."""
        return self.js("""
            const width = document.documentElement.clientWidth, inside = (e) => e && (getComputedStyle(e).overflowX !== 'visible' || inside(e.parentElement));
            return [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > width + 1 && !inside(e.parentElement)
              && !e.closest('.sr')).map((e) => e.tagName + '.' + e.getAttribute('class') + ' ' + (e.textContent || '').slice(0, 40)).slice(0, 5)""")

    def shot(self, path):
        self.driver.save_screenshot(str(path))
