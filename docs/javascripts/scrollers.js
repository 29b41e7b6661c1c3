// A formula, table or plot too wide for the screen scrolls in place. Not every browser lets
// the keyboard reach what scrolls, so it becomes focusable, for as long as it scrolls.
const watch = new ResizeObserver(entries => {
  for (const { target } of entries)
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
});

document$.subscribe(() => {
  watch.disconnect();
  document.querySelectorAll("div.formula, .md-typeset__scrollwrap, figure.book > p")
    .forEach(box => watch.observe(box));
});
