// Exercises in the page: a button that checks an answer by Python in a Worker. Nothing is
// loaded before the first click, nothing is sent anywhere, and progress stays in the browser.
const KEY = "exercises-solved", SECONDS = 10;
const WORKER = new URL("../assets/exercises/worker.mjs", import.meta.url);
let worker = null, busy = null;

function solved() {
  try { return new Set(JSON.parse(localStorage.getItem(KEY) ?? "[]")); } catch { return new Set(); }
}

function remember(name) {
  localStorage.setItem(KEY, JSON.stringify([...solved().add(name)]));
}

function stop() {
  worker?.terminate();
  clearTimeout(busy?.timer);
  worker = busy = null;
}

function given(box) {
  if (box.dataset.kind === "Choice") return box.querySelector("input:checked")?.value ?? "";
  return box.querySelector("textarea, input").value;
}

function report(box, text, state) {
  const out = box.querySelector("output");
  out.textContent = text;
  out.dataset.state = state;
}

function finish(text, state) {
  const { box, button, timer } = busy;
  clearTimeout(timer);
  report(box, text, state);
  button.disabled = false;
  busy = null;
}

function heard({ data }) {
  if (!busy) return;
  if (data.state === "running") {
    report(busy.box, "Checking …", "waiting");
    busy.timer = setTimeout(() => {
      finish(`It did not end within ${SECONDS} seconds, and was stopped. Is there a loop that never ends?`, "wrong");
      stop();
    }, 1000 * SECONDS);
  } else if (data.state === "failed") {
    finish(`Python could not be loaded here. The terminal command below does the same. (${data.text})`, "wrong");
    stop();
  } else if (data.state === "done") {
    const { box } = busy;
    if (data.passed) { remember(box.dataset.exercise); mark(box); }
    finish([data.passed ? `Right. ${data.sentence}` : data.sentence, data.detail].filter(Boolean).join("\n"),
      data.passed ? "right" : "wrong");
  }
}

function check(box, button) {
  if (busy) return;
  const text = given(box);
  if (!text.trim()) {
    report(box, box.dataset.kind === "Choice" ? "Choose an answer first." : "Type an answer first.", "wrong");
    return;
  }
  busy = { box, button, timer: 0 };
  button.disabled = true;
  report(box, worker ? "Checking …" : "Loading Python (9 MB, once) …", "waiting");
  if (!worker) {
    worker = new Worker(WORKER, { type: "module" });
    worker.onmessage = heard;
    worker.onerror = () => heard({ data: { state: "failed", text: "the Worker did not start" } });
  }
  worker.postMessage({ name: box.dataset.exercise, text });
}

function mark(box) {
  box.closest("details.exercise").classList.toggle("solved", solved().has(box.dataset.exercise));
}

function indent(area) {
  // The next line begins where this one does, four spaces further after a colon.
  const line = area.value.slice(0, area.selectionStart).split("\n").at(-1);
  const spaces = line.match(/^ */)[0] + (/:\s*$/.test(line) ? "    " : "");
  area.setRangeText("\n" + spaces, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input", { bubbles: true }));
}

function editing(area) {
  // Keyboards of phones have no Tab and do not name Enter; this event they do send.
  area.addEventListener("beforeinput", event => {
    if (event.inputType !== "insertLineBreak" && event.inputType !== "insertParagraph") return;
    event.preventDefault();
    indent(area);
  });
  // Tab indents; Escape and then Tab leave the editor, as screen readers announce.
  let leaving = false;
  area.addEventListener("keydown", event => {
    if (event.key === "Escape") { leaving = true; return; }
    if (event.key === "Tab" && !leaving && !event.shiftKey) {
      event.preventDefault();
      area.setRangeText("    ", area.selectionStart, area.selectionEnd, "end");
    }
    leaving = false;
  });
}

function add(box) {
  if (box.querySelector("output")) return;
  const area = box.querySelector("textarea"), buttons = document.createElement("div");
  buttons.className = "buttons";
  const make = (text, action) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "md-button";
    button.textContent = text;
    button.addEventListener("click", () => action(button));
    buttons.append(button);
    return button;
  };
  make("Check", button => check(box, button));
  if (area) {
    const first = area.value;
    let kept = null;
    const again = make("Start over", button => {
      if (kept === null && area.value === first) return report(box, "", "");
      [area.value, kept] = kept === null ? [first, area.value] : [kept, null];
      button.textContent = kept === null ? "Start over" : "Bring my text back";
      report(box, "", "");
    });
    area.addEventListener("input", () => { kept = null; again.textContent = "Start over"; });
    area.setAttribute("aria-description", "Tab indents. To leave the editor, press Escape, then Tab.");
    for (const name of ["autocapitalize", "autocomplete", "autocorrect"]) area.setAttribute(name, "off");
    editing(area);
  }
  const out = document.createElement("output");
  out.setAttribute("aria-live", "polite");
  box.querySelector(".terminal").before(buttons, out);
  mark(box);
}

document$.subscribe(() => {
  stop();
  document.querySelectorAll("details.exercise .answer").forEach(add);
});
addEventListener("pagehide", stop);
