// Two small helps for readers: a switch that folds all answers, so that one can try
// first, and figures that a tap enlarges.
const KEY = "answers-folded";

function foldAnswers(folded) {
  document.querySelectorAll("details.solution").forEach(box => { box.open = !folded; });
}

function addSwitch() {
  const first = document.querySelector("article details.solution");
  if (!first || document.querySelector(".answers-switch")) return;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "md-button answers-switch";
  const show = folded => {
    button.textContent = folded ? "Show answers" : "Hide answers";
    button.setAttribute("aria-pressed", String(folded));
    foldAnswers(folded);
  };
  show(localStorage.getItem(KEY) === "yes");
  button.addEventListener("click", () => {
    const folded = button.getAttribute("aria-pressed") !== "true";
    localStorage.setItem(KEY, folded ? "yes" : "no");
    show(folded);
  });
  document.querySelector("article h1").after(button);
}

function enlarge(figure) {
  const dialog = document.createElement("dialog");
  dialog.className = "enlarged md-typeset";
  dialog.setAttribute("aria-label", "Enlarged figure");
  dialog.innerHTML = '<form method="dialog"><button class="md-button">Close</button></form><div class="sheet"></div>';
  const sheet = dialog.querySelector(".sheet");
  figure.querySelectorAll(".panel, img").forEach(part => {
    const copy = part.cloneNode(true);
    // Two elements must not share an id; what names them stays in the page.
    copy.querySelectorAll("[id]").forEach(inner => inner.removeAttribute("id"));
    sheet.append(copy);
  });
  dialog.addEventListener("click", event => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// The keyboard reaches a button; a tap anywhere on the figure does the same.
function addButton(figure) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "enlarge";
  const name = figure.querySelector("figcaption strong")?.textContent.replace(/\.$/, "");
  button.textContent = `Enlarge ${name?.startsWith("Figure") ? name.toLowerCase() : "figure"}`;
  button.addEventListener("click", () => enlarge(figure));
  figure.append(button);
}

document$.subscribe(() => {
  addSwitch();
  document.querySelectorAll("figure.book > p, figure.diagram > .panels").forEach(part => {
    part.addEventListener("click", () => enlarge(part.parentElement));
    if (!part.parentElement.querySelector(".enlarge")) addButton(part.parentElement);
  });
});

// On paper a page is light.
for (const [event, scheme] of [["beforeprint", "default"], ["afterprint", ""]])
  addEventListener(event, () => {
    const body = document.body;
    if (scheme) body.dataset.screen = body.dataset.mdColorScheme;
    body.dataset.mdColorScheme = scheme || body.dataset.screen;
  });
