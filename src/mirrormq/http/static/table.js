// Tables: rows are kept by key and cells changed only where they differ, so that focus and selection survive
// live data. `ListPage` adds what long lists need: filter, order and pages, all done by the node.

import { h, newId, put, say } from "./dom.js";
import { count } from "./format.js";

/**
 * columns: [{label, value(row) -> text | node, sort?: name, title?, num, main, tags, long, tight?}];
 * options: {key(row), caption, empty, order: {sort, reverse}, onSort(name)}.
 */
export class DataTable {
  constructor(columns, options) {
    this.columns = columns;
    this.options = options;
    this.rows = new Map();
    this.body = h("tbody", { role: "rowgroup" });
    this.head = h("tr", { role: "row" });
    this.drawHead(options.order ?? {});
    this.empty = h("p", { class: "empty", hidden: true }, options.empty ?? "… nothing …");
    this.element = h(
      "div",
      { class: "table-box" },
      // Roles are said aloud: a narrow screen shows rows as cards, which would take them away.
      h(
        "table",
        { role: "table", "aria-label": options.caption },
        h("thead", { role: "rowgroup" }, this.head),
        this.body,
      ),
      this.empty,
    );
  }

  drawHead(order) {
    put(
      this.head,
      this.columns.map((column) => {
        const isSorted = column.sort && column.sort === order.sort;
        const direction = order.reverse ? "descending" : "ascending";
        const label =
          column.sort && this.options.onSort
            ? h(
                "button",
                { type: "button", class: "sort", onclick: () => this.options.onSort(column.sort) },
                column.label,
                h(
                  "span",
                  { "aria-hidden": "true", class: "arrow" },
                  isSorted ? (order.reverse ? "▼" : "▲") : "",
                ),
              )
            : column.label;
        return h(
          "th",
          {
            scope: "col",
            role: "columnheader",
            class: column.num ? "num" : undefined,
            title: column.title,
            "aria-sort": isSorted ? direction : undefined,
          },
          label,
        );
      }),
    );
  }

  update(rows) {
    const seen = new Set();
    let place = this.body.firstElementChild;
    for (const row of rows) {
      const key = this.options.key(row);
      seen.add(key);
      let line = this.rows.get(key);
      if (!line) {
        const cells = this.columns.map((column) =>
          h("td", { role: "cell", class: kindOf(column), "data-label": column.label }),
        );
        line = { element: h("tr", { role: "row" }, cells) };
        this.rows.set(key, line);
      }
      this.draw(line, row);
      if (line.element === place) place = place.nextElementSibling;
      else this.body.insertBefore(line.element, place);
    }
    for (const [key, line] of this.rows) {
      if (!seen.has(key)) {
        line.element.remove();
        this.rows.delete(key);
      }
    }
    this.empty.hidden = rows.length > 0;
  }

  draw(line, row) {
    const sign = JSON.stringify(row);
    if (line.sign === sign) return;
    line.sign = sign;
    this.columns.forEach((column, number) => {
      const cell = line.element.children[number];
      const value = column.value(row);
      if (!(value instanceof Node)) {
        say(cell, value);
        cell.classList.toggle("void", value === "–" || cell.textContent === "");
      } else if (cell.childNodes.length !== 1 || !value.isEqualNode(cell.firstChild)) {
        const hadFocus = cell.contains(document.activeElement);
        cell.replaceChildren(value);
        if (hadFocus) cell.querySelector("a, button, input, select")?.focus();
      }
    });
  }
}

function kindOf(column) {
  if (column.main) return "main long";
  if (column.num) return "num";
  if (column.tags) return "tags";
  return column.long ? "long" : column.tight ? "tight" : undefined;
}

export const PAGE_SIZES = [20, 50, 100, 250, 500];

/**
 * A list that the node pages, filters and sorts. `make(query)` gives the topic for a query string; what is
 * chosen stands in the page's address, so that it can be linked to and survives "back".
 */
export class ListPage {
  constructor(context, columns, options) {
    this.context = context;
    this.options = options;
    const asked = context.query;
    this.state = {
      page: Number(asked.get("page")) || 1,
      size: Number(asked.get("page_size")) || 100,
      name: asked.get("name") ?? "",
      regex: asked.get("use_regex") === "true",
      sort: asked.get("sort") ?? "",
      reverse: asked.get("sort_reverse") === "true",
    };
    // As in RabbitMQ: where there is only one, it is not worth a column.
    const shown = columns.filter((column) => context.hasVhosts || column.label !== "Virtual host");
    this.table = new DataTable(shown, {
      ...options,
      order: this.state,
      onSort: (name) => this.sortBy(name),
    });
    this.total = h("span", { class: "total" });
    this.pages = h("nav", { class: "pager", "aria-label": "Pages" });
    this.element = h("div", {}, this.controls(), this.table.element);
    this.open();
  }

  controls() {
    const filter = newId("filter");
    const regex = newId("regex");
    const size = newId("size");
    this.filter = h("input", {
      id: filter,
      type: "search",
      value: this.state.name,
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.change({ name: this.filter.value, page: 1 }), 200);
      },
    });
    return h(
      "div",
      { class: "list-controls" },
      h(
        "div",
        { class: "group" },
        h("label", { for: filter }, "Filter"),
        this.filter,
        h(
          "label",
          { class: "check" },
          h("input", {
            id: regex,
            type: "checkbox",
            checked: this.state.regex,
            onchange: (event) => this.change({ regex: event.target.checked, page: 1 }),
          }),
          "Regex",
        ),
      ),
      h(
        "div",
        { class: "group" },
        this.total,
        this.pages,
        h("label", { for: size }, "per page"),
        h(
          "select",
          { id: size, onchange: (event) => this.change({ size: Number(event.target.value), page: 1 }) },
          PAGE_SIZES.map((number) => h("option", { selected: number === this.state.size }, number)),
        ),
      ),
    );
  }

  sortBy(name) {
    const isSame = this.state.sort === name;
    this.change({ sort: name, reverse: isSame ? !this.state.reverse : false, page: 1 });
    this.table.drawHead(this.state);
    const place = this.table.columns.findIndex((column) => column.sort === name);
    this.table.head.children[place]?.querySelector("button")?.focus();
  }

  change(fields) {
    Object.assign(this.state, fields);
    this.context.remember(this.query(true));
    this.open();
  }

  query(isAddress) {
    const found = new URLSearchParams();
    const { page, size, name, regex, sort, reverse } = this.state;
    if (!isAddress || page !== 1) found.set("page", page);
    if (!isAddress || size !== 100) found.set("page_size", size);
    if (name) found.set("name", name);
    if (name && regex) found.set("use_regex", "true");
    if (sort) found.set("sort", sort);
    if (sort && reverse) found.set("sort_reverse", "true");
    if (!isAddress && this.options.columns) found.set("columns", this.options.columns);
    return found.toString();
  }

  open() {
    this.stop?.();
    this.element.setAttribute("aria-busy", "true");
    this.stop = this.context.follow(
      [this.options.make(this.query(false))],
      (_, found) => this.take(found),
      (_, fault) => {
        // Rows were deleted, and with them the page that was shown.
        if (fault.error === "page_out_of_range" && this.state.page > 1) this.change({ page: 1 });
        else this.context.problem(fault);
      },
    );
  }

  take(found) {
    this.element.removeAttribute("aria-busy");
    this.context.problem(null);
    this.table.update(found.items);
    const all = found.filtered_count === found.total_count ? "" : ` of ${count(found.total_count)}`;
    say(this.total, `${count(found.filtered_count)}${all} ${this.options.noun}`);
    this.drawPages(found);
    this.options.onData?.(found);
  }

  drawPages(found) {
    const sign = `${found.page}/${found.page_count}`;
    if (this.shownPages === sign) return;
    this.shownPages = sign;
    const step = (label, page, text) =>
      h(
        "button",
        {
          type: "button",
          "aria-label": label,
          disabled: page < 1 || page > found.page_count,
          onclick: () => this.change({ page }),
        },
        text,
      );
    put(
      this.pages,
      step("Previous page", found.page - 1, "‹"),
      h("span", {}, `page ${count(found.page)} of ${count(found.page_count)}`),
      step("Next page", found.page + 1, "›"),
    );
  }
}
