// Light or dark before the first paint: what was chosen here last, else what the system prefers.
// A classic script, since a module would run after the page has been painted once.
(() => {
  const chosen = localStorage.getItem("mirrormq.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
