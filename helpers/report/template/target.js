"use strict";
// Filters the stages of a target's index by words and by state. Without this script all are shown.
const form = document.querySelector("form.filters");
const words = form.querySelector("input[type=search]");
const boxes = [...form.querySelectorAll("input[type=checkbox]")];
const count = form.querySelector("[role=status]");
const models = [...document.querySelectorAll("section.model")];

function matches(row, model, wanted, states) {
  const text = `${model} ${row.textContent}`.toLowerCase();
  const found = [...row.querySelectorAll("[data-state]")].map((cell) => cell.dataset.state);
  return wanted.every((word) => text.includes(word)) && found.some((state) => states.has(state));
}

function show() {
  const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
  const states = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
  let shown = 0, all = 0;
  for (const section of models) {
    const rows = [...section.querySelectorAll("tbody tr")];
    let here = 0;
    for (const row of rows) {
      row.hidden = !matches(row, section.dataset.model, wanted, states);
      here += !row.hidden;
    }
    section.hidden = here === 0;
    shown += here;
    all += rows.length;
  }
  count.textContent = `${shown} of ${all} experiments`;
}

form.addEventListener("input", show);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
show();
