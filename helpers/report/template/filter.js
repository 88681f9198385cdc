"use strict";
// Filters the rows of a page by words, by states and by the values of columns, and sorts a table by
// a column. The choice is kept in the address after "#", so that one can link to it:
// #model=tft&gpu=NVIDIA+T4&sort=-throughput (samples/s). Without this script all rows are shown.
const form = document.querySelector("form.filters");
const fields = [...form.querySelectorAll("input, select")];
const words = form.querySelector("input[type=search]");
const states = fields.filter((field) => field.name === "without");
const selects = [...form.querySelectorAll("select")];
const count = document.querySelector("[data-count]");
const rows = [...document.querySelectorAll("tr[data-states], .rows tbody tr")];
const counted = rows.filter((row) => row.matches(form.dataset.counted));
const sections = [...document.querySelectorAll("section[data-words]")];
const body = document.querySelector(".rows tbody");
const heads = [...document.querySelectorAll(".rows thead th")];
const names = heads.map((head) => head.textContent);
const collator = new Intl.Collator("en", { numeric: true });
let sort = "";

function text(row, column) {
  return row.cells[column].textContent;
}

function number(row, column) {
  return parseFloat(text(row, column).replaceAll(",", ""));
}

function fits(row, wanted, chosen) {
  const section = row.closest("section[data-words]");
  const all = wanted.length ? `${section.dataset.words} ${row.textContent}`.toLowerCase() : "";
  return wanted.every((word) => all.includes(word))
    && (chosen.length === states.length || row.dataset.states.split(" ").some((one) => chosen.includes(one)))
    && selects.every((each) => !each.value || text(row, each.dataset.column) === each.value)
    && (!form.broken?.checked || row.classList.contains("broken"));
}

// Empty cells come last in both orders.
function compare(column, sign, one, other) {
  const [a, b] = [number(one, column), number(other, column)];
  if (isNaN(a) && isNaN(b)) return sign * collator.compare(text(one, column), text(other, column));
  return isNaN(a) - isNaN(b) || sign * (a - b);
}

function showOrder() {
  const [column, sign] = [names.indexOf(sort.replace(/^-/, "")), sort.startsWith("-") ? -1 : 1];
  body.append(...(column < 0 ? rows : [...rows].sort((a, b) => compare(column, sign, a, b))));
  heads.forEach((head, place) => {
    head.ariaSort = place !== column ? null : sign > 0 ? "ascending" : "descending";
  });
}

function show() {
  const wanted = (words?.value ?? "").toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = states.filter((box) => box.checked).map((box) => box.value);
  for (const row of rows) row.hidden = !fits(row, wanted, chosen);
  for (const section of sections) {
    section.hidden = ![...section.querySelectorAll("tr[data-states]")].some((row) => !row.hidden);
  }
  if (body) showOrder();
  const shown = counted.filter((row) => !row.hidden).length.toLocaleString("en");
  count.textContent = `${shown} of ${counted.length.toLocaleString("en")} ${form.dataset.unit}`;
}

function read() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const field of fields) {
    const values = chosen.getAll(field.name);
    if (field.type === "checkbox") field.checked = field.defaultChecked !== values.includes(field.value);
    else field.value = values[0] ?? "";
    if (field.selectedIndex < 0) field.value = "";
  }
  sort = chosen.get("sort") ?? "";
  show();
}

function write() {
  const chosen = new URLSearchParams();
  for (const field of fields) {
    const isBox = field.type === "checkbox";
    if (isBox ? field.checked !== field.defaultChecked : field.value) chosen.append(field.name, field.value);
  }
  if (sort) chosen.set("sort", sort);
  history.replaceState(null, "", `#${chosen}`);
  show();
}

for (const select of selects) {
  const values = new Set(rows.map((row) => text(row, select.dataset.column)));
  select.append(new Option("all", ""), ...[...values].map((value) => new Option(value)));
}
heads.forEach((head, place) => {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = names[place];
  button.onclick = () => {
    sort = sort === names[place] ? `-${names[place]}` : names[place];
    write();
  };
  head.replaceChildren(button);
});
form.hidden = false;
form.addEventListener("input", write);
form.addEventListener("change", write);
form.addEventListener("submit", (event) => event.preventDefault());
form.querySelector("button")?.addEventListener("click", () => {
  form.reset();
  sort = "";
  write();
});
addEventListener("hashchange", read);
read();
if (location.hash) document.getElementById("rows")?.scrollIntoView();

const seconds = Number(form.dataset.refresh);
if (seconds) {
  setInterval(() => form.contains(document.activeElement) || location.reload(), 1000 * seconds);
}
