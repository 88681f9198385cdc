"use strict";
// Filters and sorts the table of published rows. The choice is kept in the address after "#",
// so that one can link to it: #model=tft&gpu=NVIDIA+T4&sort=-throughput (samples/s)
const body = document.querySelector(".rows tbody");
const heads = [...document.querySelectorAll(".rows thead th")];
const names = heads.map((head) => head.textContent);
const rows = [...body.rows];
const form = document.querySelector("form");
const selects = [...form.querySelectorAll("select")];
const collator = new Intl.Collator("en", { numeric: true });
let sort = "";

function text(row, column) {
  return row.cells[column].textContent;
}

function number(row, column) {
  return parseFloat(text(row, column).replaceAll(",", ""));
}

// Empty cells come last in both orders.
function compare(column, sign, one, other) {
  const [a, b] = [number(one, column), number(other, column)];
  if (isNaN(a) && isNaN(b)) return sign * collator.compare(text(one, column), text(other, column));
  return isNaN(a) - isNaN(b) || sign * (a - b);
}

function show() {
  let count = 0;
  for (const row of rows) {
    const fits = selects.every((s) => !s.value || text(row, s.dataset.column) === s.value);
    row.hidden = !fits || (form.broken.checked && !row.classList.contains("broken"));
    count += !row.hidden;
  }
  const [column, sign] = [names.indexOf(sort.replace(/^-/, "")), sort.startsWith("-") ? -1 : 1];
  const sorted = column < 0 ? rows : [...rows].sort((a, b) => compare(column, sign, a, b));
  body.append(...sorted);
  heads.forEach((head, place) => {
    if (place === column) head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    else head.removeAttribute("aria-sort");
  });
  const all = rows.length.toLocaleString("en");
  const some = count.toLocaleString("en");
  document.querySelector("output").textContent = count < rows.length ? `${some} of ${all} rows` : `${all} rows`;
}

function read() {
  const chosen = new URLSearchParams(location.hash.slice(1));
  for (const select of selects) {
    select.value = chosen.get(select.name) ?? "";
    if (select.selectedIndex < 0) select.value = "";
  }
  form.broken.checked = chosen.has("broken");
  sort = chosen.get("sort") ?? "";
  show();
}

function write() {
  const chosen = new URLSearchParams();
  for (const select of selects) if (select.value) chosen.set(select.name, select.value);
  if (form.broken.checked) chosen.set("broken", "");
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
form.onchange = write;
form.querySelector("button").onclick = () => {
  form.reset();
  sort = "";
  write();
};
addEventListener("hashchange", read);
read();
if (location.hash) document.getElementById("rows").scrollIntoView();
