"use strict";
// Filters the lines of an index by words and by state, and loads the index again while a run is
// in progress. Without this script all lines are shown, and the browser loads it again.
const form = document.querySelector("form.filters");
const words = form.querySelector("input[type=search]");
const boxes = [...form.querySelectorAll("input[type=checkbox]")];
const count = form.querySelector("[role=status]");
const lines = [...document.querySelectorAll("tr[data-states]")];
const sections = [...document.querySelectorAll("section[data-words]")];

function matches(line, wanted, states) {
  const section = line.closest("section");
  const text = `${section.dataset.words} ${line.textContent}`.toLowerCase();
  const isChosen = !states || line.dataset.states.split(" ").some((state) => states.has(state));
  return isChosen && wanted.every((word) => text.includes(word));
}

function show() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
  const states = chosen.length < boxes.length ? new Set(chosen) : null;
  for (const line of lines) line.hidden = !matches(line, wanted, states);
  for (const section of sections) {
    section.hidden = ![...section.querySelectorAll("tr[data-states]")].some((line) => !line.hidden);
  }
  const counted = lines.filter((line) => line.matches(form.dataset.counted));
  const shown = counted.filter((line) => !line.hidden);
  count.textContent = `${shown.length} of ${counted.length} ${form.dataset.unit}`;
}

// The choice is kept in the address after "#", so that one can link to it.
function keep() {
  const chosen = new URLSearchParams();
  if (words.value) chosen.set("search", words.value);
  for (const box of boxes) if (!box.checked) chosen.append("without", box.value);
  history.replaceState(null, "", `#${chosen}`);
  show();
}

const chosen = new URLSearchParams(location.hash.slice(1));
words.value = chosen.get("search") ?? "";
for (const box of boxes) box.checked = !chosen.getAll("without").includes(box.value);
form.addEventListener("input", keep);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
show();

const seconds = Number(form.dataset.refresh);
if (seconds) {
  setInterval(() => form.contains(document.activeElement) || location.reload(), 1000 * seconds);
}
