// Bring explorables to life: a drawing that names a script is replaced by what the script
// mounts, once the reader comes near it. Leaving the page ends everything: whatever an
// explorable starts (listeners, frames, Workers) is tied to the signal it is given.
let leave = new AbortController();

async function enliven(figure, signal) {
  const { mount, label } = await import(new URL(`${figure.dataset.explorable}.mjs`, import.meta.url));
  if (signal.aborted) return;
  const stage = document.createElement("div");
  stage.className = "stage";
  stage.setAttribute("role", "group");
  stage.setAttribute("aria-label", label);
  const still = figure.querySelector(".panels");
  still.before(stage);
  await mount(stage, { signal });
  // From here on the drawing is for paper.
  figure.classList.add("live");
}

function begin() {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const watch = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries)
      if (isIntersecting) { watch.unobserve(target); enliven(target, signal); }
  }, { rootMargin: "300px" });
  // The theme's button back to the top would cover controls.
  const near = new Set(), cover = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) near[isIntersecting ? "add" : "delete"](target);
    document.body.classList.toggle("exploring", near.size > 0);
  });
  signal.addEventListener("abort", () => { watch.disconnect(); cover.disconnect(); document.body.classList.remove("exploring"); });
  document.querySelectorAll("figure.explorable:not(.live)").forEach(figure => { watch.observe(figure); cover.observe(figure); });
}

document$.subscribe(begin);
addEventListener("pagehide", () => leave.abort());
// A page that comes back from the browser's memory is alive again.
addEventListener("pageshow", event => {
  if (!event.persisted) return;
  document.querySelectorAll("figure.explorable.live").forEach(figure => {
    figure.classList.remove("live");
    figure.querySelector(".stage").remove();
  });
  begin();
});
