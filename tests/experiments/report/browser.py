#!/usr/bin/env python3
"""Pages in a real browser (Debian's chromium, headless), with nothing but Python's standard library.

browser.py PAGE...: opens each page at three widths, light and dark, and unfolds everything.  Ends with 1 and a line for
each problem: a script's error, a request for anything but the page (of a URL: its server), content wider than the window,
headings that skip a level, text of too little contrast (WCAG 2.1, 1.4.3: 4.5, large text 3).  The page of `sparring watch`
is checked when its first event has come."""
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile

WIDTHS = (360, 768, 1280)
THEMES = ("light", "dark")

FILLED = """new Promise(done => {
  const look = () => document.getElementById('totals').textContent ? done() : setTimeout(look, 20);
  look();
})"""

CHECK = r"""
(() => {
  const problems = [];
  const name = e => e.tagName.toLowerCase() + (e.className.baseVal ?? e.className ? '.' + (e.className.baseVal ?? e.className) : '');
  document.querySelectorAll('details').forEach(d => d.open = true);
  if (document.documentElement.scrollWidth > innerWidth) {
    const wide = [...document.body.querySelectorAll('*')].filter(
        e => e.getBoundingClientRect().right > innerWidth + 0.5 && !e.closest('.scroll') && !e.closest('svg'));
    problems.push(`wider than the window: ${document.documentElement.scrollWidth}: ` + wide.slice(0, 3).map(name).join(', '));
  }
  let level = 0;
  const headings = [...document.querySelectorAll('h1,h2,h3,h4,h5,h6')];
  if (headings.filter(h => h.tagName == 'H1').length != 1) problems.push('not one h1');
  for (const h of headings) {
    const next = Number(h.tagName[1]);
    if (next > level + 1) problems.push(`h${next} after h${level}: ${h.textContent}`);
    level = next;
  }
  const parse = text => { const n = text.match(/[\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const over = (a, b) => [0, 1, 2].map(i => a[i] * a[3] + b[i] * (1 - a[3]));
  const luminance = c => {
    const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = e => {
    const layers = [];
    for (; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const seen = new Set();
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()) || ['TITLE', 'STYLE', 'SCRIPT'].includes(e.tagName.toUpperCase()))
      continue;
    const style = getComputedStyle(e), size = parseFloat(style.fontSize);
    if (style.visibility != 'visible' || e.getClientRects().length == 0) continue;
    const below = ground(e), ink = over(parse(e.closest('svg') ? style.fill : style.color), below);
    const [low, high] = [luminance(ink), luminance(below)].sort((a, b) => a - b);
    const ratio = (high + 0.05) / (low + 0.05);
    const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < least && !seen.has(name(e))) {
      seen.add(name(e));
      problems.push(`contrast ${ratio.toFixed(2)} of ${name(e)}: ${e.textContent.trim().slice(0, 40)}`);
    }
  }
  return problems;
})()
"""


def high_pipe():
    """The browser reads its descriptor 3 and writes to 4, so ours must be others."""
    return [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe()]


class Browser:
    def __init__(self, folder):
        commands, answers = high_pipe(), high_pipe()

        def connect():
            os.dup2(commands[0], 3)
            os.dup2(answers[1], 4)

        self.process = subprocess.Popen(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder}",
             "--remote-debugging-pipe", "about:blank"],
            preexec_fn=connect, pass_fds=(3, 4), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands[0])
        os.close(answers[1])
        self.commands, self.answers = os.fdopen(commands[1], "wb", 0), os.fdopen(answers[0], "rb", 0)
        self.buffer, self.last_id, self.session, self.events = b"", 0, None, []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def read(self):
        while b"\0" not in self.buffer:
            data = self.answers.read(1 << 16)
            if not data:
                sys.exit("browser.py: chromium ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, **params):
        self.last_id += 1
        request = {"id": self.last_id, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        self.commands.write(json.dumps(request).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.last_id:
                if "error" in message:
                    sys.exit(f"browser.py: {method}: {message['error']}")
                return message["result"]
            self.events.append(message)

    def wait(self, method):
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self.read())

    def check(self, page, width, theme):
        """The problems of a page."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        self.events.clear()
        is_live = page.startswith("http:")
        url = page if is_live else pathlib.Path(page).resolve().as_uri()
        self.call("Page.navigate", url=url)
        self.wait("Page.loadEventFired")
        if is_live:
            self.call("Runtime.evaluate", expression=FILLED, awaitPromise=True)
        result = self.call("Runtime.evaluate", expression=CHECK, returnByValue=True)
        if "exceptionDetails" in result:
            sys.exit(f"browser.py: {result['exceptionDetails']}")
        problems = list(result["result"]["value"])
        for event in self.events:
            method, params = event.get("method"), event.get("params", {})
            if method == "Runtime.exceptionThrown":
                problems.append("script: " + params["exceptionDetails"]["text"])
            elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
                problems.append("log: " + params["entry"]["text"])
            elif method == "Network.requestWillBeSent" and not (
                    params["request"]["url"].startswith(url) if is_live else params["request"]["url"] == url):
                problems.append("request: " + params["request"]["url"][:80])
        return problems

    def close(self):
        self.session = None
        self.call("Browser.close")
        self.process.wait()


def main(pages):
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        browser = Browser(folder)
        for page in pages:
            for width in WIDTHS:
                for theme in THEMES:
                    for problem in browser.check(page, width, theme):
                        print(f"{os.path.basename(page)}, {width} px, {theme}: {problem}")
                        count += 1
        browser.close()
    print(f"{len(pages)} pages, {len(WIDTHS)} widths, {len(THEMES)} themes: {count} problems")
    return count > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
