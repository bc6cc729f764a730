"use strict";
// The map of layers: blocks with one tile a sort of layer, and the layers of a block when it is opened.
// Reads the document that inside.py describes. Every text goes in as a text node, never as markup.

{
  const doc = JSON.parse(document.getElementById("data").textContent);
  const place = document.getElementById("map");
  const STEP = 200; // rows or blocks that are added at a time
  const [BLOCK, NAME, SORT, SOURCE, LINE, BYTES, RANK] = [0, 1, 2, 3, 4, 5, 6];
  const MARK = 0;
  const stored = doc.layers.some((x) => x[BYTES] >= 0);
  let view = doc.first;
  let onlyMark = -1;
  let wanted = "";

  function make(tag, className, ...children) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    element.append(...children);
    return element;
  }

  // 1.5 GB: decimal units, three digits
  function size(bytes) {
    if (bytes < 0) return "–";
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (bytes < 1000) return `${Number(bytes.toPrecision(3))} ${unit}`;
      bytes /= 1000;
    }
    return `${Number(bytes.toPrecision(3))} TB`;
  }

  const verdict = (layer) => doc.verdicts[doc.lines[layer[LINE]][view]];
  const fullName = (layer) => (doc.blocks[layer[BLOCK]] ? `${doc.blocks[layer[BLOCK]]}.${layer[NAME]}` : layer[NAME]);
  const shown = (layer) => (onlyMark < 0 || verdict(layer)[MARK] === onlyMark) && (!wanted || fullName(layer).toLowerCase().includes(wanted));

  function mark(number, words) {
    const [name, sign] = doc.marks[number];
    const signElement = make("span", "sign", sign);
    signElement.setAttribute("aria-hidden", "true");
    return make("span", `mark ${name}`, signElement, ` ${words}`);
  }

  // [mark, count] from good to bad
  function tally(layers) {
    const counts = doc.marks.map(() => 0);
    for (const layer of layers) counts[verdict(layer)[MARK]] += 1;
    return counts.flatMap((count, number) => (count ? [[number, count]] : []));
  }

  const words = (counts) => counts.map(([number, count]) => `${count} ${doc.marks[number][2]}`).join(", ");

  // A list that grows when its button is pressed
  function paged(parent, items, render, what) {
    let done = 0;
    const button = make("button", "");
    button.type = "button";
    const more = () => {
      const next = items.slice(done, done + STEP).map(render);
      parent.append(...next);
      done += next.length;
      button.textContent = `${Math.min(STEP, items.length - done)} more of ${items.length - done} ${what}`;
      button.hidden = done >= items.length;
      return next[0];
    };
    button.addEventListener("click", () => {
      const first = more();
      if (button.hidden && first) {
        first.tabIndex = -1; // the button that had the focus is gone
        first.focus();
      }
    });
    more();
    return button;
  }

  function row(layer) {
    const [format, , shape, parts] = doc.sources[layer[SOURCE]];
    const [number, why, padding, packed] = verdict(layer);
    const word = doc.marks[number][2];
    const cells = [
      ["layer", make("code", "", fullName(layer) + (layer[RANK] ? ` (${layer[RANK]})` : ""))],
      ["source", format + (parts > 1 ? `, ${parts} parts` : "")],
      ["N × K", shape],
      ...(stored ? [["bytes", size(layer[BYTES])]] : []),
      ["packed", size(packed)],
      ["padding", padding || "–"],
      ["verdict", mark(number, why ? `${word}: ${why}` : word)],
    ];
    return make("tr", "", ...cells.map(([label, content]) => {
      const cell = make("td", "", make("span", "", content));
      cell.dataset.label = label;
      return cell;
    }));
  }

  function rows(layers) {
    const heads = ["layer", "source", "N × K", ...(stored ? ["bytes"] : []), "packed", "padding", "verdict"].map((label) => {
      const head = make("th", "", label);
      head.scope = "col";
      return head;
    });
    const body = make("tbody", "");
    const button = paged(body, layers, row, "layers");
    return make("div", "", make("table", "cards", make("thead", "", make("tr", "", ...heads)), body), button);
  }

  function tiles(layers) {
    const sorts = new Map();
    for (const layer of layers) {
      if (!sorts.has(layer[SORT])) sorts.set(layer[SORT], []);
      sorts.get(layer[SORT]).push(layer);
    }
    const out = [];
    for (const [sort, mine] of [...sorts].slice(0, 40)) {
      for (const [number, count] of tally(mine)) {
        out.push(mark(number, doc.sorts[sort] + (count > 1 ? ` × ${count}` : "")));
      }
    }
    if (sorts.size > 40) out.push(make("span", "count", `and ${sorts.size - 40} more sorts`));
    return make("span", "tiles", ...out);
  }

  function block([number, layers]) {
    const bytes = layers.some((x) => x[BYTES] < 0) ? "" : `, ${size(layers.reduce((sum, x) => sum + x[BYTES], 0))}`;
    const name = make("span", "name", doc.blocks[number] ? make("code", "", doc.blocks[number]) : "outside the blocks", make("br", ""));
    name.append(make("span", "count", `${layers.length} layer${layers.length > 1 ? "s" : ""}${bytes}: ${words(tally(layers))}`));
    const element = make("details", "block", make("summary", "", name, tiles(layers)));
    element.addEventListener("toggle", () => {
      if (element.open && element.children.length === 1) element.append(rows(layers));
    });
    return element;
  }

  const result = make("div", "");
  const said = make("p", "count");
  said.setAttribute("role", "status");

  function draw() {
    const layers = doc.layers.filter(shown);
    const blocks = new Map();
    for (const layer of layers) {
      if (!blocks.has(layer[BLOCK])) blocks.set(layer[BLOCK], []);
      blocks.get(layer[BLOCK]).push(layer);
    }
    said.textContent = `${layers.length} of ${doc.layers.length} layers in ${blocks.size} block${blocks.size === 1 ? "" : "s"}${layers.length ? `: ${words(tally(layers))}` : ""}`;
    const list = make("div", "");
    result.replaceChildren(list, paged(list, [...blocks], block, "blocks"));
  }

  function select(label, options, chosen, changed) {
    const element = make("select", "");
    for (const [value, text] of options) element.append(new Option(text, value, value === chosen, value === chosen));
    element.addEventListener("change", () => changed(element.value));
    return make("label", "", label, element);
  }

  function controls() {
    const bar = make("div", "controls");
    const fill = () => {
      const [group, name] = doc.views[view];
      const groups = [...new Set(doc.views.map((v) => v[0]))];
      const names = doc.views.filter((v) => v[0] === group).map((v) => v[1]);
      const go = (g, n) => {
        const exact = doc.views.findIndex((v) => v[0] === g && v[1] === n);
        view = exact >= 0 ? exact : doc.views.findIndex((v) => v[0] === g);
        fill();
        draw();
      };
      const search = make("input", "");
      search.type = "search";
      search.value = wanted;
      let timer = 0;
      search.addEventListener("input", () => {
        clearTimeout(timer);
        timer = setTimeout(() => {
          wanted = search.value.trim().toLowerCase();
          draw();
        }, 150);
      });
      const marks = [...new Set(doc.layers.map((x) => verdict(x)[MARK]))].sort((a, b) => a - b);
      if (!marks.includes(onlyMark)) onlyMark = -1;
      const focused = [...bar.querySelectorAll("select, input")].indexOf(document.activeElement);
      bar.replaceChildren(
        ...(groups.length > 1 ? [select(doc.axes[0], groups.map((g) => [g, g]), group, (g) => go(g, name))] : []),
        ...(names.length > 1 ? [select(doc.axes[1], names.map((n) => [n, n]), name, (n) => go(group, n))] : []),
        ...(marks.length > 1
          ? [select("show", [["-1", "all"], ...marks.map((m) => [String(m), `${doc.marks[m][1]} ${doc.marks[m][2]}`])], String(onlyMark), (m) => {
              onlyMark = Number(m);
              draw();
            })]
          : []),
        make("label", "grow", "name contains", search),
      );
      if (focused >= 0) bar.querySelectorAll("select, input")[focused]?.focus();
    };
    fill();
    return bar;
  }

  if (place) {
    place.append(controls(), said, result);
    draw();
  }
}
