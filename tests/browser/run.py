#!/usr/bin/python3
"""Drives the docs/play page in headless Chromium with clicks and keys, and compares what it shows with what `trivet
schedule` prints for the same values. Needs Debian's chromium, chromium-driver and python3-selenium.

    run.py TRIVET PAGE     PAGE: the folder that docs/play/build.sh created
"""
import functools
import http.server
import os
import re
import subprocess
import sys
import tempfile
import threading
import xml.etree.ElementTree

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

trivet, page = map(os.path.abspath, sys.argv[1:])
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
checks = 0


def same(what, shown, expected):
    global checks
    checks += 1
    assert shown == expected, f"{what}: the page shows\n{shown}\nexpected\n{expected}"


# ---- what the program prints

def printed(*options):
    return subprocess.run([trivet, "schedule", *options], check=True, capture_output=True, text=True).stdout


def refusal(*options):
    ran = subprocess.run([trivet, "schedule", *options], capture_output=True, text=True)
    assert ran.returncode == 64, ran
    return ran.stderr.removeprefix("trivet: ").strip()


# The numbers in the table, by column, and the rectangles in the picture.
def expected(*options):
    width = ["--width", str(element("picture").get_property("clientWidth"))] if element("fit").is_selected() else []
    lines = printed(*options, "--svg", "picture.svg", *width).strip().splitlines()
    numbers = dict(zip(*(re.split(r"\s{2,}", line) for line in lines[-2:]), strict=True))
    del numbers["schedule"]  # its name
    rects = xml.etree.ElementTree.parse("picture.svg").getroot().iter("{http://www.w3.org/2000/svg}rect")
    return numbers, [[rect.get(name) for name in ("class", "x", "y", "width")] for rect in rects]


# ---- what the page shows

def start_browser():
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1024,900",
                     "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"):
        options.add_argument(argument)
    return webdriver.Chrome(service=webdriver.chrome.service.Service("/usr/bin/chromedriver"), options=options)


def element(name):
    return browser.find_element(By.ID, name)


def text_of(name):
    return element(name).get_property("textContent")


def open_page(url):
    browser.get(url)
    WebDriverWait(browser, 60).until(lambda _: text_of("verdict") != "Loading…")


def choose(kind):
    Select(element("kind")).select_by_visible_text(kind)


def slide(name, steps):  # with the keyboard
    element(name).send_keys((Keys.ARROW_RIGHT if steps > 0 else Keys.ARROW_LEFT) * abs(steps))


def write(text):
    element("order").send_keys(Keys.CONTROL + "a" + Keys.NULL + text)


def compare(what, *options):
    numbers = {pair.find_element(By.TAG_NAME, "dt").text: pair.find_element(By.TAG_NAME, "dd").text
               for pair in element("numbers").find_elements(By.TAG_NAME, "div")}
    rects = browser.execute_script("return [...document.querySelectorAll('#picture rect')].map("
                                   "r => ['class', 'x', 'y', 'width'].map(name => r.getAttribute(name)))")
    same(what, (numbers, rects), expected(*options))


def compare_refusal(what, message):
    same(what, text_of("verdict"), message)
    same(what, {cell.text for cell in browser.find_elements(By.TAG_NAME, "dd")}, {"-"})
    assert not browser.find_element(By.TAG_NAME, "svg").is_displayed() and not element("yaml-button").is_enabled()


def compare_kinds():
    kinds = [line.split()[0] for line in printed("--kinds").splitlines()]
    same("kinds", [option.text for option in Select(element("kind")).options][:-1], kinds)
    for kind in kinds:
        choose(kind)
        compare(kind, "--kind", kind)
        same(kind, element("order").get_property("value"), printed("--kind", kind, "--text"))


def compare_sliders():
    choose("1f1b")
    slide("p", 4)
    slide("m", -3)
    compare("p and m", "--pipeline", "8", "--microbatches", "5")
    slide("f", 10)
    slide("i", 5)
    slide("w", -5)
    compare("costs", "--pipeline", "8", "--microbatches", "5", "--costs", "1.5,1.25,0.75")
    choose("dualpipe-v")
    compare_refusal("too few", refusal("--kind", "dualpipe-v", "--pipeline", "8", "--microbatches", "5"))
    slide("m", 20)
    slide("latency", 10)
    compare("latency", "--kind", "dualpipe-v", "--pipeline", "8", "--microbatches", "25", "--costs", "1.5,1.25,0.75",
            "--latency", "0.5", "--transfers")
    slide("v", 1)
    compare_refusal("chunks", refusal("--kind", "dualpipe-v", "--pipeline", "8", "--microbatches", "25", "--chunks", "3"))
    choose("interleaved")
    slide("v", 1)
    compare("v = 3", "--kind", "interleaved", "--pipeline", "8", "--microbatches", "25", "--chunks", "3",
            "--costs", "1.5,1.25,0.75", "--latency", "0.5", "--transfers")


def compare_texts():
    for text in ("0: F0 B0 F1 B1\n1: F0 F1 B0 B1\n",   # a deadlock
                 "0: F0 F1 B0 B1\n1: F0 F1 B1 B0\n",   # gradients out of order
                 "0: F0 X0\n",                         # not an op
                 "schedule p=3\n0: F0 B0\n"):
        write(text)
        with open("mine.txt", "w") as file:
            file.write(text)
        compare_refusal(text, refusal("--file", "mine.txt"))
    write("schedule m=1000000 v=1000000\n0: F0 B0")
    assert "at most 10000" in text_of("verdict"), text_of("verdict")
    text = "0: F0 B0 F1 B1\n1: F0 B0 F1 B1\n"
    write(text)
    with open("mine.txt", "w") as file:
        file.write(text)
    compare("a text", "--file", "mine.txt")
    assert not element("p").is_enabled()
    choose("gpipe")
    compare("back at a kind", "--kind", "gpipe")
    element("fit").click()
    compare("as wide as the numbers need", "--kind", "gpipe")
    choose("my own text")
    compare("the text again", "--file", "mine.txt")


# The configuration keys that the button shows train one step of the schedule on the page.
def compare_yaml(kind, p, m):
    assert element("yaml").is_displayed()
    with open("text.txt", "w") as file:
        file.write("Some text to train on. " * 40)
    data = f"data_{kind}"
    subprocess.run([trivet, "data", "prepare", "--input", "text.txt", "--tokenizer", "bytes", "--output", data],
                   check=True, capture_output=True)
    with open("run.yaml", "w") as file:
        file.write(text_of("yaml") + "model: {num_layers: 8, hidden_size: 16, num_attention_heads: 2, seq_length: 8}\n"
                                     f"data: {{path: {data}}}\ntrain: {{train_iters: 1, run_dir: run_{kind}}}\n")
    ran = subprocess.run([trivet, "train", "run.yaml", "--ranks", str(p)], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    with open(f"run_{kind}/config.resolved.yaml") as file:
        resolved = file.read()
    for line in (f'pipeline_schedule: "{kind}"', f"pipeline_model_parallel_size: {p}", f"global_batch_size: {m}"):
        assert line in resolved, f"{line} is not in\n{resolved}"


with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(
        type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None}), directory=page)) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    browser = start_browser()
    try:
        open_page(address)
        compare("as opened")
        compare_kinds()
        element("yaml-button").click()
        compare_yaml("dualpipe-v", 4, 8)
        compare_sliders()
        open_page(address)
        compare_texts()
        element("yaml-button").send_keys(Keys.ENTER)
        compare_yaml("mine.txt", 2, 2)
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
        same("loaded", [name for name in loaded if not name.startswith((address, "data:"))], [])
        same("errors", [line for line in browser.get_log("browser") if line["level"] == "SEVERE"], [])
        open_page(f"file://{page}/index.html")
        compare("from disk")
    finally:
        browser.quit()
        server.shutdown()
print(f"{checks} comparisons, all equal")
